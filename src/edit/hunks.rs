//! Where the hunks of a patch go in a file, and what the file becomes. A place is unique or it is none.

use std::ops::Range;

use super::explain::near;
use super::lines::{Line, excerpt, lines, list};
use super::patch::{Hunk, Sign};

/// How a line of the patch is like one of the file. The closer likeness is tried first, over the whole range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Likeness {
    Exact,
    /// But for space at its end.
    End,
    /// But for space at both ends.
    Ends,
    /// But for space at both ends, and for typographic punctuation.
    Punctuation,
    /// The line of the file goes on; only for what follows `@@`.
    Beginning,
}

impl Likeness {
    const ALL: [Self; 5] = [Self::Exact, Self::End, Self::Ends, Self::Punctuation, Self::Beginning];

    /// How a place was found that is not exact, for a notice.
    pub(crate) fn note(self) -> Option<&'static str> {
        match self {
            Self::Exact | Self::Beginning => None,
            Self::End => Some("but for spaces at the ends of lines"),
            Self::Ends => Some("but for indentation and spaces at the ends of lines"),
            Self::Punctuation => Some("but for indentation and typographic punctuation"),
        }
    }

    fn holds(self, file: &[u8], sent: &str) -> bool {
        if self == Self::Exact {
            return file == sent.as_bytes();
        }
        let Ok(text) = std::str::from_utf8(file) else {
            return match self {
                Self::End => file.trim_ascii_end() == sent.as_bytes().trim_ascii_end(),
                Self::Ends => file.trim_ascii() == sent.as_bytes().trim_ascii(),
                _ => false,
            };
        };
        match self {
            Self::Exact => false,
            Self::End => text.trim_end() == sent.trim_end(),
            Self::Ends => text.trim() == sent.trim(),
            Self::Punctuation => {
                text.trim().chars().map(plain_punctuation).eq(sent.trim().chars().map(plain_punctuation))
            }
            Self::Beginning => text.trim().starts_with(sent.trim()),
        }
    }
}

/// A typographic dash, quote or space as the plain one.
pub(crate) fn plain_punctuation(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

/// A file after its hunks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Patched {
    pub(crate) body: Vec<u8>,
    /// The loosest likeness that was needed, with the line of the patch whose hunk needed it.
    pub(crate) loosest: (Likeness, usize),
}

/// Why a hunk has no place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoPlace {
    /// Whether it has more than one.
    pub(crate) ambiguous: bool,
    /// The line of the patch where the hunk begins.
    pub(crate) number: usize,
    pub(crate) what: String,
    pub(crate) hint: String,
}

/// Applies the hunks, in their order.
pub(crate) fn apply(body: &[u8], hunks: &[Hunk<'_>]) -> Result<Patched, NoPlace> {
    let file: Vec<Line<'_>> = lines(body).collect();
    let mut changes = Changes { file: &file, removed: vec![false; file.len()], added: Vec::new() };
    let (mut from, mut loosest) = (0, (Likeness::Exact, 0));
    for hunk in hunks {
        let place = place(body, &file, hunk, from)?;
        if place.likeness > loosest.0 {
            loosest = (place.likeness, hunk.number);
        }
        from = from.max(changes.make(hunk, &place));
    }
    Ok(Patched { body: changes.write(), loosest })
}

/// Where a hunk goes: the line of the file where it begins, and how many of its own lines hold.
struct Place {
    start: usize,
    /// How many of the hunk's lines count.
    lines: usize,
    likeness: Likeness,
}

fn place(body: &[u8], file: &[Line<'_>], hunk: &Hunk<'_>, from: usize) -> Result<Place, NoPlace> {
    let scope = scope(file, hunk, from)?;
    let old = |count: usize| -> Vec<&str> {
        let lines = hunk.lines.iter().take(count);
        lines.filter(|(sign, _)| *sign != Sign::Add).map(|(_, line)| *line).collect()
    };
    let all = hunk.lines.len();
    // Empty lines before the next hunk may be no part of this one.
    let counts = if hunk.loose == 0 { vec![all] } else { vec![all, all - hunk.loose] };
    for count in counts {
        let wanted = old(count);
        if wanted.is_empty() {
            // Nothing is quoted: it goes below its scope, or to the end.
            let start = if hunk.at_end || hunk.scopes.is_empty() { file.len() } else { scope.after };
            return Ok(Place { start, lines: count, likeness: scope.likeness });
        }
        let starts = from.max(scope.after)..file.len();
        let starts =
            if hunk.at_end { starts.start.max(file.len().saturating_sub(wanted.len()))..file.len() } else { starts };
        match seek(file, &wanted, starts, &scope.block, &Likeness::ALL[..4]) {
            Found::One(start, likeness) => {
                return Ok(Place { start, lines: count, likeness: likeness.max(scope.likeness) });
            }
            Found::Many(starts) => {
                let starts: Vec<usize> = starts.iter().map(|start| start + 1).collect();
                return Err(NoPlace {
                    ambiguous: true,
                    number: hunk.number,
                    what: format!("its lines are at lines {}", list(&starts)),
                    hint: "Quote more lines round the change, or put an `@@` line before it that names the function or class."
                        .to_owned(),
                });
            }
            Found::None => {}
        }
    }
    Err(missing(body, file, hunk, &old(all - hunk.loose), from))
}

/// Why a hunk's lines are not where they should be.
fn missing(body: &[u8], file: &[Line<'_>], hunk: &Hunk<'_>, wanted: &[&str], from: usize) -> NoPlace {
    let no_place = |what: String, hint: String| NoPlace { ambiguous: false, number: hunk.number, what, hint };
    let everywhere = 0..file.len();
    let elsewhere = seek(file, wanted, everywhere.clone(), &everywhere, &Likeness::ALL[..4]);
    if let Found::One(start, _) = elsewhere {
        let why = if hunk.at_end && start + wanted.len() != file.len() {
            "not at the end of the file"
        } else if start < from {
            "before those of the hunk above it"
        } else {
            "not below its `@@` line"
        };
        return no_place(
            format!("its lines are at line {}, {why}", start + 1),
            "Put hunks in the order of the file, each `@@` line above its place.".to_owned(),
        );
    }
    // The first line that is nowhere is the one to look at.
    let absent = wanted
        .iter()
        .find(|line| !line.trim().is_empty() && !file.iter().any(|f| Likeness::Punctuation.holds(f.content, line)));
    // What is quoted stands in the hint: messages go on record.
    let (what, quoted) = match absent {
        Some(line) => ("a line of it is not in the file", format!("Not in the file: `{}`. ", excerpt(line.as_bytes()))),
        None => ("its lines are not together in the file in this order", String::new()),
    };
    let text = absent.map_or_else(|| wanted.join("\n"), |line| (*line).to_owned());
    let added: Vec<&str> = hunk.lines.iter().filter(|(sign, _)| *sign == Sign::Add).map(|(_, line)| *line).collect();
    let near = near(body, &text, Some(&added.join("\n")));
    no_place(what.to_owned(), quoted + &near.hint("Read the file again and quote its lines as they are."))
}

/// Where a hunk is to be looked for.
struct Scope {
    /// The first line below it.
    after: usize,
    /// The lines that it opens: those below it that are indented more.
    block: Range<usize>,
    likeness: Likeness,
}

/// Finds the `@@` lines of a hunk, each below the one before.
fn scope(file: &[Line<'_>], hunk: &Hunk<'_>, from: usize) -> Result<Scope, NoPlace> {
    let mut scope = Scope { after: 0, block: 0..file.len(), likeness: Likeness::Exact };
    for (depth, text) in hunk.scopes.iter().enumerate() {
        // The outermost is looked for below the last hunk first, then above it: one scope may hold several hunks.
        let below = if depth == 0 { from } else { scope.after };
        let mut found = seek(file, &[text], below..file.len(), &scope.block, &Likeness::ALL);
        if depth == 0 && matches!(found, Found::None) {
            found = seek(file, &[text], 0..from, &(0..from), &Likeness::ALL);
        }
        let no_place = |ambiguous, what, hint: String| NoPlace { ambiguous, number: hunk.number, what, hint };
        match found {
            Found::One(at, likeness) => {
                let inner = block(file, at);
                scope = Scope { after: at + 1, block: inner, likeness: likeness.max(scope.likeness) };
            }
            Found::Many(places) => {
                let places: Vec<usize> = places.iter().map(|at| at + 1).collect();
                return Err(no_place(
                    true,
                    format!("the line after `@@` is at lines {}", list(&places)),
                    "Put another `@@` line above it that is there once, such as its class.".to_owned(),
                ));
            }
            Found::None => {
                let whole: Vec<u8> = file.iter().flat_map(|line| [line.content, b"\n"].concat()).collect();
                return Err(no_place(
                    false,
                    "the line after `@@` is not in the file there".to_owned(),
                    format!("Not there: `{}`. ", excerpt(text.as_bytes()))
                        + &near(&whole, text, None).hint("Put a whole line of the file after `@@`, or leave it out."),
                ));
            }
        }
    }
    if scope.likeness == Likeness::Beginning {
        scope.likeness = Likeness::Exact;
    }
    Ok(scope)
}

/// The lines below line `at` that are indented more than it.
fn block(file: &[Line<'_>], at: usize) -> Range<usize> {
    let indent = |line: &Line<'_>| line.content.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    let own = file.get(at).map_or(0, indent);
    let rest = file.get(at + 1..).unwrap_or_default();
    let ends = |line: &&Line<'_>| !line.content.trim_ascii().is_empty() && indent(line) <= own;
    let count = rest.iter().take_while(|line| !ends(line)).count();
    at + 1..at + 1 + count
}

enum Found {
    None,
    One(usize, Likeness),
    Many(Vec<usize>),
}

/// The one place where the lines `wanted` begin in `starts`, in the closest likeness that finds any. One in `block`
/// goes before others.
fn seek(
    file: &[Line<'_>],
    wanted: &[&str],
    starts: Range<usize>,
    block: &Range<usize>,
    likenesses: &[Likeness],
) -> Found {
    let last = (file.len() + 1).saturating_sub(wanted.len()).min(starts.end);
    for likeness in likenesses {
        let holds = |start: &usize| {
            let lines = file.get(*start..).unwrap_or_default();
            wanted.iter().zip(lines).all(|(sent, line)| likeness.holds(line.content, sent))
        };
        let found: Vec<usize> = (starts.start..last).filter(holds).collect();
        let inside: Vec<usize> = found.iter().copied().filter(|start| block.contains(start)).collect();
        match (found.as_slice(), inside.as_slice()) {
            ([], _) => {}
            (_, [one]) | ([one], []) => return Found::One(*one, *likeness),
            _ => return Found::Many(found),
        }
    }
    Found::None
}

/// What the hunks change of a file's lines.
struct Changes<'f, 'a> {
    file: &'f [Line<'a>],
    removed: Vec<bool>,
    /// Before which line, with which end.
    added: Vec<(usize, &'a [u8], Vec<u8>)>,
}

impl<'a> Changes<'_, 'a> {
    /// Notes what a hunk changes; answers the first line below it. Lines that it keeps stay as the file has them.
    fn make(&mut self, hunk: &Hunk<'_>, place: &Place) -> usize {
        let mut at = place.start;
        // The ends of the lines that were removed just before, which the added ones take over.
        let mut ends: std::collections::VecDeque<&'a [u8]> = std::collections::VecDeque::new();
        let mut end: Option<&'a [u8]> = None;
        for (sign, text) in hunk.lines.iter().take(place.lines) {
            match sign {
                Sign::Keep => {
                    (ends, end) = (std::collections::VecDeque::new(), None);
                    at += 1;
                }
                Sign::Remove => {
                    if let Some(removed) = self.removed.get_mut(at) {
                        *removed = true;
                    }
                    ends.extend(self.file.get(at).map(|line| line.end).filter(|end| !end.is_empty()));
                    at += 1;
                }
                Sign::Add => {
                    end = ends.pop_front().or(end);
                    self.added.push((at, end.unwrap_or_else(|| self.end_near(at)), text.as_bytes().to_vec()));
                }
            }
        }
        at
    }

    /// How the lines round line `at` end.
    fn end_near(&self, at: usize) -> &'a [u8] {
        let above = self.file.get(..at).unwrap_or_default().iter().rev();
        let below = self.file.get(at..).unwrap_or_default().iter();
        above.chain(below).map(|line| line.end).find(|end| !end.is_empty()).unwrap_or(b"\n")
    }

    /// The file as it becomes. It ends in a newline if it did before, or was empty.
    fn write(mut self) -> Vec<u8> {
        self.added.sort_by_key(|(at, ..)| *at);
        let mut out: Vec<u8> = Vec::new();
        let mut last: Option<&[u8]> = None;
        let mut put = |content: &[u8], end: &'a [u8], out: &mut Vec<u8>| {
            // A last line without an end that has got lines below it.
            if last == Some(b"") {
                out.extend_from_slice(self.end_near(self.file.len()));
            }
            out.extend_from_slice(content);
            out.extend_from_slice(end);
            last = Some(end);
        };
        let mut added = self.added.iter().peekable();
        for at in 0..=self.file.len() {
            while let Some((_, end, content)) = added.next_if(|(before, ..)| *before == at) {
                put(content, end, &mut out);
            }
            if let (Some(line), Some(false)) = (self.file.get(at), self.removed.get(at)) {
                put(line.content, line.end, &mut out);
            }
        }
        let had_end = self.file.last().is_none_or(|line| !line.end.is_empty());
        match last {
            Some(b"") if had_end => out.extend_from_slice(self.end_near(self.file.len())),
            Some(end) if !had_end => out.truncate(out.len() - end.len()),
            _ => {}
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::super::patch::{Section, Work, parse};
    use super::*;

    fn patched(body: &str, hunks: &str) -> Result<(String, Likeness), NoPlace> {
        let text = format!("*** Begin Patch\n*** Update File: f\n{hunks}\n*** End Patch");
        let sections = parse(&text).unwrap();
        let [Section { work: Work::Update { hunks, .. }, .. }] = sections.as_slice() else { panic!("one update") };
        apply(body.as_bytes(), hunks).map(|done| (String::from_utf8(done.body).unwrap(), done.loosest.0))
    }

    fn is(body: &str, hunks: &str, expected: &str) {
        assert_eq!(patched(body, hunks), Ok((expected.to_owned(), Likeness::Exact)), "{hunks}");
    }

    #[test]
    fn endings_and_the_final_newline_are_kept() {
        is("a\nb", "-a\n+A", "A\nb");
        is("a\nb", " b\n+c", "a\nb\nc");
        is("a\nb", "-b\n+B", "a\nB");
        is("a\nb\n", " b\n+c", "a\nb\nc\n");
        is("a\nb", "-b", "a");
        is("a\r\nb\r\nc\r\n", "-b\n+p\n+q", "a\r\np\r\nq\r\nc\r\n");
        is("one\r\ntwo\nthree\r\nfour", "-three\n+3a\n+3b", "one\r\ntwo\n3a\r\n3b\r\nfour");
        is("", "+a\n+b", "a\nb\n");
        is("a\n", "-a", "");
        is("a\r\nb", "@@\n+c\n*** End of File", "a\r\nb\r\nc");
    }

    #[test]
    fn a_scope_says_which_of_two_places() {
        let body = "fn a() {\n    x\n}\nfn b() {\n    x\n}\n";
        is(body, "@@ fn b()\n-    x\n+    y", "fn a() {\n    x\n}\nfn b() {\n    y\n}\n");
        is(body, "@@ fn a() {\n-    x\n+    y", "fn a() {\n    y\n}\nfn b() {\n    x\n}\n");
        is(body, "@@ fn b()\n+    z", "fn a() {\n    x\n}\nfn b() {\n    z\n    x\n}\n");
        let error = patched(body, "-    x\n+    y").unwrap_err();
        assert_eq!((error.ambiguous, error.what.as_str()), (true, "its lines are at lines 2, 5"));
        let classes = "class A:\n    def f():\n        x\nclass B:\n    def f():\n        x\n";
        is(
            classes,
            "@@ class B:\n@@     def f():\n-        x\n+        y",
            &classes.replace("x\n", "y\n").replacen('y', "x", 1),
        );
        let error = patched(classes, "@@     def f():\n-        x\n+        y").unwrap_err();
        assert_eq!((error.ambiguous, error.what.as_str()), (true, "the line after `@@` is at lines 2, 5"));
        // One scope may hold several hunks.
        let long = "class A:\n  1\n  2\n  3\nend\n";
        is(long, "@@ class A:\n-  1\n+  one\n@@ class A:\n-  3\n+  three", "class A:\n  one\n  2\n  three\nend\n");
        let flat = "a\nx\nb\nx\n";
        assert!(patched(flat, "@@ a\n-x\n+y").unwrap_err().ambiguous);
    }

    #[test]
    fn looser_likenesses_come_after_closer_ones() {
        let of = |body: &str, hunks: &str| patched(body, hunks).map(|(_, likeness)| likeness);
        assert_eq!(of("a \n", "-a\n+b"), Ok(Likeness::End));
        assert_eq!(of("  a\n", "-a\n+b"), Ok(Likeness::Ends));
        assert_eq!(of("\u{201c}a\u{201d} \u{2013} b\n", "-\"a\" - b\n+b"), Ok(Likeness::Punctuation));
        // The exact one is the place, though another is like it.
        is("  a\na\n", "-a\n+b", "  a\nb\n");
        // What is kept stays as the file has it.
        assert_eq!(patched("  a\t\n  b\n", " a\n-b\n+c").unwrap().0, "  a\t\nc\n");
        assert_eq!(patched("a \na\t\n", "-a\n+b").unwrap_err().what, "its lines are at lines 1, 2");
    }

    #[test]
    fn a_hunk_without_a_place_says_why() {
        let why = |body: &str, hunks: &str| patched(body, hunks).unwrap_err().what;
        assert_eq!(why("a\nb\n", "-x\n+y"), "a line of it is not in the file");
        assert_eq!(why("a\nb\n", " b\n-a"), "its lines are not together in the file in this order");
        assert_eq!(why("a\nb\nc\n", "-c\n@@\n-a"), "its lines are at line 1, before those of the hunk above it");
        assert_eq!(why("a\nb\n", "-a\n*** End of File"), "its lines are at line 1, not at the end of the file");
        assert_eq!(why("a\nb\n", "@@ b\n-a"), "its lines are at line 1, not below its `@@` line");
        assert_eq!(why("a\nb\n", "@@ zzz\n-a"), "the line after `@@` is not in the file there");
    }

    #[test]
    fn empty_lines_at_the_end_of_a_hunk_need_not_be_in_the_file() {
        is("a\nb\n", "@@\n-a\n+A\n\n@@\n-b\n+B", "A\nB\n");
        is("a\n\nb\n", "@@\n-a\n+A\n\n@@\n-b\n+B", "A\n\nB\n");
    }

    #[test]
    fn a_place_that_moved_is_found_and_one_that_differs_is_not() {
        let old: Vec<String> = (1..=20).map(|n| format!("line {n}")).collect();
        let body = format!("{}{}\n", "new\n".repeat(5), old.join("\n"));
        let done = patched(&body, "@@ -3 @@\n line 2\n-line 3\n+LINE 3\n line 4").unwrap();
        assert_eq!(done, (body.replace("line 3\n", "LINE 3\n"), Likeness::Exact));
        assert!(patched(&body, "@@ -3 @@\n line 2\n-lime 3\n+LINE 3").is_err());
    }
}

#[cfg(test)]
mod random {
    //! A patch made from two files turns the one into the other.
    use std::fmt::Write as _;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};
    use similar::{Algorithm, DiffTag, capture_diff_slices, group_diff_ops};

    use super::super::patch::{Section, Work, parse};
    use super::*;

    /// How many pairs of files are tried, unless the variable says another number.
    const PAIRS: u32 = 500;
    const VARIABLE: &str = "KGENT_RANDOM_PAIRS";

    /// The patch from `old` to `new` with so many lines of context.
    fn patch(old: &[&str], new: &[&str], context: usize) -> String {
        let ops = capture_diff_slices(Algorithm::Myers, old, new);
        let mut text = "*** Begin Patch\n*** Update File: f\n".to_owned();
        for group in group_diff_ops(ops, context) {
            text.push_str("@@\n");
            for op in &group {
                let (removed, added) = (&old[op.old_range()], &new[op.new_range()]);
                let signs =
                    if op.tag() == DiffTag::Equal { vec![(' ', removed)] } else { vec![('-', removed), ('+', added)] };
                for (sign, lines) in signs {
                    for line in lines {
                        writeln!(text, "{sign}{line}").unwrap();
                    }
                }
            }
            if group.last().is_some_and(|op| op.old_range().end == old.len()) {
                text.push_str("*** End of File\n");
            }
        }
        text + "*** End Patch\n"
    }

    fn run(old: &[u8], text: &str) -> Result<Vec<u8>, NoPlace> {
        let sections = parse(text).expect("what we write parses");
        let [Section { work: Work::Update { hunks, .. }, .. }] = sections.as_slice() else {
            panic!("one update: {text}")
        };
        apply(old, hunks).map(|done| done.body)
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the length of the test")]
    fn a_patch_made_from_two_files_turns_one_into_the_other() {
        let cases = std::env::var(VARIABLE).ok().and_then(|n| n.parse().ok()).unwrap_or(PAIRS);
        let line = || prop_oneof!["[a-d]{0,2}", "  [a-z]{1,6}", "\t[a-z ]{0,9}\\}", "[ -~]{0,12}", "[é─🍸]{1,3}"];
        let file = || prop::collection::vec(line(), 0..40);
        let edited =
            (file(), prop::collection::vec((0..40_usize, 0..3_usize, line()), 0..8)).prop_map(|(old, edits)| {
                let mut new = old.clone();
                for (at, kind, line) in edits {
                    let at = at % (new.len() + 1);
                    match kind {
                        0 if at < new.len() => drop(new.remove(at)),
                        1 if at < new.len() => new[at] = line,
                        _ => new.insert(at, line),
                    }
                }
                (old, new)
            });
        let pairs = prop_oneof![4 => edited, 1 => (file(), file())];
        let mut runner = TestRunner::new(Config {
            cases,
            max_global_rejects: 8 * cases,
            failure_persistence: None,
            ..Config::default()
        });
        let test = runner.run(
            &(pairs, prop::sample::select(vec!["\n", "\r\n"]), any::<bool>()),
            |((old, new), end, ended)| {
                prop_assume!(old != new && !old.is_empty());
                let file = |lines: &[String]| {
                    // A file of one empty line without an end is no file of one line.
                    let last = if ended || lines.last().is_some_and(String::is_empty) { end } else { "" };
                    if lines.is_empty() { String::new() } else { lines.join(end) + last }
                };
                let ends = |lines: &[String]| ended || lines.last().is_some_and(String::is_empty);
                prop_assume!(new.is_empty() || ends(&old) == ends(&new));
                let (before, after) = (file(&old), file(&new));
                // A file without a line break has no style.
                prop_assume!(end == "\n" || before.contains(end));
                let old: Vec<&str> = old.iter().map(String::as_str).collect();
                let new: Vec<&str> = new.iter().map(String::as_str).collect();
                let done = run(before.as_bytes(), &patch(&old, &new, 3));
                let done = match done {
                    // Lines that repeat are no place: the whole file is.
                    Err(NoPlace { ambiguous: true, .. }) => run(before.as_bytes(), &patch(&old, &new, usize::MAX / 4)),
                    other => other,
                };
                prop_assert_eq!(done.map(|body| String::from_utf8(body).unwrap()), Ok(after));
                Ok(())
            },
        );
        test.unwrap();
    }
}
