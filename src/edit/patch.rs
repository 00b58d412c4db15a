//! The grammar of `apply_patch`: `*** Begin Patch` to `*** End Patch`, strictly, with the number of each line that
//! breaks it.

/// What a patch does, in its order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Section<'a> {
    /// As sent.
    pub(crate) path: &'a str,
    pub(crate) work: Work<'a>,
}

/// What becomes of one file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Work<'a> {
    /// A new file with these lines.
    Add(Vec<&'a str>),
    Delete,
    Update {
        move_to: Option<&'a str>,
        hunks: Vec<Hunk<'a>>,
    },
}

/// A change at one place of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hunk<'a> {
    /// The number of its first line in the patch.
    pub(crate) number: usize,
    /// The lines after `@@`, the outermost first.
    pub(crate) scopes: Vec<&'a str>,
    pub(crate) lines: Vec<(Sign, &'a str)>,
    /// Lines at its end that are wholly empty: perhaps context, perhaps only space before what follows.
    pub(crate) loose: usize,
    /// Whether it ends with the file.
    pub(crate) at_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    Keep,
    Remove,
    Add,
}

/// What is wrong in which line of the patch, and what is right.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) instead: &'static str,
}

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const END_OF_FILE: &str = "*** End of File";
const ADD: &str = "*** Add File:";
const DELETE: &str = "*** Delete File:";
const UPDATE: &str = "*** Update File:";
const MOVE: &str = "*** Move to:";

const SECTIONS: &str =
    "Begin a section with `*** Add File: <path>`, `*** Delete File: <path>` or `*** Update File: <path>`.";
const HUNKS: &str =
    "In a hunk each line begins with a space (as it is), `-` (removed) or `+` (added); hunks begin with `@@`.";

/// Reads a patch.
pub(crate) fn parse(text: &str) -> Result<Vec<Section<'_>>, Broken> {
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let mut lines: Vec<(usize, &str)> = lines.enumerate().map(|(at, line)| (at + 1, line)).collect();
    trim(&mut lines);
    unwrap_heredoc(&mut lines);
    let broken = |line: usize, what: String, instead| Err(Broken { line, what, instead });
    match lines.first() {
        Some((_, line)) if line.trim() == BEGIN => {}
        first => {
            let what = format!("the first line is not `{BEGIN}`");
            return broken(
                first.map_or(1, |(number, _)| *number),
                what,
                "Send the whole patch, from its begin line on.",
            );
        }
    }
    match lines.last() {
        Some((_, line)) if line.trim() == END && lines.len() > 1 => {}
        last => {
            let what = format!("the last line is not `{END}`");
            return broken(last.map_or(1, |(number, _)| *number), what, "Send the whole patch, to its end line.");
        }
    }
    let end = lines.len() - 1;
    let mut reader = Reader { lines: lines.get(1..end).unwrap_or_default(), at: 0 };
    let mut sections = Vec::new();
    while let Some((number, line)) = reader.next() {
        let header = line.trim();
        if header.is_empty() {
            continue;
        }
        let path = |prefix: &str| {
            let path = header.strip_prefix(prefix)?.trim();
            let what = || Broken { line: number, what: format!("`{prefix}` without a path"), instead: SECTIONS };
            Some(if path.is_empty() { Err(what()) } else { Ok(path) })
        };
        if let Some(path) = path(ADD) {
            sections.push(Section { path: path?, work: Work::Add(reader.added()?) });
        } else if let Some(path) = path(DELETE) {
            sections.push(Section { path: path?, work: Work::Delete });
        } else if let Some(path) = path(UPDATE) {
            let path = path?;
            let move_to = reader.move_to()?;
            let hunks = reader.hunks()?;
            if hunks.is_empty() && move_to.is_none() {
                return broken(number, format!("the update of `{path}` has no hunk"), HUNKS);
            }
            sections.push(Section { path, work: Work::Update { move_to, hunks } });
        } else if matches!(header, BEGIN | END) {
            return broken(number, format!("`{header}` inside of the patch"), "Send one patch with all files.");
        } else {
            return broken(number, "the line belongs to no file".to_owned(), SECTIONS);
        }
    }
    if sections.is_empty() {
        return broken(1, "the patch names no file".to_owned(), SECTIONS);
    }
    Ok(sections)
}

fn trim(lines: &mut Vec<(usize, &str)>) {
    let blank = |line: &(usize, &str)| line.1.trim().is_empty();
    while lines.last().is_some_and(blank) {
        lines.pop();
    }
    let first = lines.iter().take_while(|line| blank(line)).count();
    lines.drain(..first);
}

/// Removes the shell's wrapper: `<<'EOF'`, perhaps after the command's name, and `EOF`.
fn unwrap_heredoc(lines: &mut Vec<(usize, &str)>) {
    let Some((_, first)) = lines.first() else { return };
    let first = first.trim();
    let Some(word) = first.strip_prefix("apply_patch").unwrap_or(first).trim_start().strip_prefix("<<") else { return };
    let quoted = ["'", "\""].iter().find_map(|quote| word.strip_prefix(quote)?.strip_suffix(quote));
    let word = quoted.unwrap_or(word);
    if word.is_empty() || lines.last().is_none_or(|(_, last)| last.trim() != word) || lines.len() < 2 {
        return;
    }
    lines.pop();
    lines.remove(0);
    trim(lines);
}

struct Reader<'l, 'a> {
    lines: &'l [(usize, &'a str)],
    at: usize,
}

impl<'a> Reader<'_, 'a> {
    fn peek(&self) -> Option<(usize, &'a str)> {
        self.lines.get(self.at).copied()
    }

    fn next(&mut self) -> Option<(usize, &'a str)> {
        let line = self.peek()?;
        self.at += 1;
        Some(line)
    }

    /// Whether only blank lines stand before the next section, or the end.
    fn section_ends(&self) -> bool {
        let rest = self.lines.get(self.at..).unwrap_or_default();
        rest.iter().find(|(_, line)| !line.trim().is_empty()).is_none_or(|(_, line)| line.starts_with("***"))
    }

    fn added(&mut self) -> Result<Vec<&'a str>, Broken> {
        let mut lines = Vec::new();
        while let Some((number, line)) = self.peek() {
            if let Some(line) = line.strip_prefix('+') {
                lines.push(line);
                self.at += 1;
            } else if self.section_ends() {
                break;
            } else {
                let what = "a line of an added file does not begin with `+`".to_owned();
                return Err(Broken {
                    line: number,
                    what,
                    instead: "Put `+` before each line of the new file, empty ones too.",
                });
            }
        }
        Ok(lines)
    }

    fn move_to(&mut self) -> Result<Option<&'a str>, Broken> {
        let Some((number, path)) = self.peek().and_then(|(n, line)| Some((n, line.trim().strip_prefix(MOVE)?.trim())))
        else {
            return Ok(None);
        };
        self.at += 1;
        if path.is_empty() {
            return Err(Broken {
                line: number,
                what: format!("`{MOVE}` without a path"),
                instead: "Name the new path.",
            });
        }
        Ok(Some(path))
    }

    fn hunks(&mut self) -> Result<Vec<Hunk<'a>>, Broken> {
        let mut hunks: Vec<Hunk<'a>> = Vec::new();
        // The first hunk may do without `@@`.
        let mut open: Option<Hunk<'a>> = None;
        let close = |hunk: Option<Hunk<'a>>, hunks: &mut Vec<Hunk<'a>>| {
            let Some(mut hunk) = hunk else { return Ok(()) };
            if hunk.lines.is_empty() {
                return Err(Broken { line: hunk.number, what: "the hunk has no lines".to_owned(), instead: HUNKS });
            }
            let loose = hunk.lines.iter().rev().take_while(|(sign, line)| *sign == Sign::Keep && line.is_empty());
            hunk.loose = hunk.loose.min(loose.count());
            hunks.push(hunk);
            Ok(())
        };
        while let Some((number, line)) = self.peek() {
            if line.trim_end() == END_OF_FILE {
                self.at += 1;
                let Some(hunk) = open.take().filter(|hunk| !hunk.lines.is_empty()) else {
                    let what = format!("`{END_OF_FILE}` without lines before it");
                    return Err(Broken { line: number, what, instead: HUNKS });
                };
                close(Some(Hunk { at_end: true, ..hunk }), &mut hunks)?;
                continue;
            }
            if line.starts_with("***") {
                break;
            }
            if let Some(rest) = line.strip_prefix("@@") {
                self.at += 1;
                // `@@` lines in a row name scopes inside one another.
                if open.as_ref().is_none_or(|hunk| !hunk.lines.is_empty()) {
                    close(open.take(), &mut hunks)?;
                    open = Some(Hunk { number, ..Hunk::default() });
                }
                if let (Some(hunk), Some(scope)) = (&mut open, scope(rest)) {
                    hunk.scopes.push(scope);
                }
                continue;
            }
            let read = match line.chars().next() {
                None => Some((Sign::Keep, "")),
                Some(' ') => Some((Sign::Keep, &line[1..])),
                Some('-') => Some((Sign::Remove, &line[1..])),
                Some('+') => Some((Sign::Add, &line[1..])),
                Some(_) => None,
            };
            if open.is_none() && hunks.is_empty() && line.is_empty() {
                self.at += 1;
                continue;
            }
            let starts = open.is_none() && !hunks.is_empty();
            if starts && self.section_ends() {
                break;
            }
            let Some(read) = read.filter(|_| !starts) else {
                if self.section_ends() {
                    break;
                }
                let what =
                    if starts { "a hunk without `@@`" } else { "a line that is no context, removal or addition" };
                return Err(Broken { line: number, what: what.to_owned(), instead: HUNKS });
            };
            self.at += 1;
            let hunk = open.get_or_insert_with(|| Hunk { number, ..Hunk::default() });
            hunk.loose = if line.is_empty() { hunk.loose + 1 } else { 0 };
            hunk.lines.push(read);
        }
        close(open, &mut hunks)?;
        Ok(hunks)
    }
}

/// What follows `@@`: the line that the place lies below. Line numbers, as other formats have them, say nothing here.
fn scope(rest: &str) -> Option<&str> {
    let text = rest.trim();
    let numbers = text.split_once("@@").filter(|(numbers, _)| {
        numbers.starts_with('-') && numbers.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | '+' | ',' | ' '))
    });
    let text = numbers.map_or(text, |(_, scope)| scope.trim());
    // The indentation tells one `def` from another.
    let text = if numbers.is_none() { rest.strip_prefix(' ').unwrap_or(rest).trim_end() } else { text };
    (!text.trim().is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn broken(text: &str) -> (usize, String) {
        let broken = parse(text).unwrap_err();
        (broken.line, broken.what)
    }

    #[test]
    fn every_kind_of_section_is_read() {
        let text = "\n*** Begin Patch\n*** Add File: a b\n+one\n+\n+ two\n\n*** Delete File: d\n*** Update File: u\n\
            *** Move to: v\n@@ class A\n@@     def f():\n keep\n-old\n+new\n\n*** Update File: w\n-x\n*** End of File\n\
            @@ -1,2 +3 @@ fn b()\n+y\n@@ -3 @@\n z\n*** End Patch\n\n";
        let hunk = Hunk {
            number: 11,
            scopes: vec!["class A", "    def f():"],
            lines: vec![(Sign::Keep, "keep"), (Sign::Remove, "old"), (Sign::Add, "new"), (Sign::Keep, "")],
            loose: 1,
            at_end: false,
        };
        let w = vec![
            Hunk { number: 18, lines: vec![(Sign::Remove, "x")], at_end: true, ..Hunk::default() },
            Hunk { number: 20, scopes: vec!["fn b()"], lines: vec![(Sign::Add, "y")], ..Hunk::default() },
            Hunk { number: 22, lines: vec![(Sign::Keep, "z")], ..Hunk::default() },
        ];
        let expected = vec![
            Section { path: "a b", work: Work::Add(vec!["one", "", " two"]) },
            Section { path: "d", work: Work::Delete },
            Section { path: "u", work: Work::Update { move_to: Some("v"), hunks: vec![hunk] } },
            Section { path: "w", work: Work::Update { move_to: None, hunks: w } },
        ];
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn wrappers_and_carriage_returns_are_no_part_of_it() {
        let plain = "*** Begin Patch\n*** Delete File: a\n*** End Patch";
        let sections = vec![Section { path: "a", work: Work::Delete }];
        for open in ["<<EOF", "<<'EOF'", "<<\"EOF\"", "apply_patch <<'EOF'"] {
            assert_eq!(parse(&format!("{open}\n{plain}\nEOF\n")).as_ref(), Ok(&sections), "{open}");
        }
        assert_eq!(parse(&plain.replace('\n', "\r\n")), Ok(sections));
    }

    #[test]
    fn what_breaks_the_grammar_is_named_with_its_line() {
        let is = |text: &str, line: usize, what: &str| assert_eq!(broken(text), (line, what.to_owned()), "{text:?}");
        is("", 1, "the first line is not `*** Begin Patch`");
        is("*** Update File: a\n*** End Patch", 1, "the first line is not `*** Begin Patch`");
        is("*** Begin Patch\n*** Delete File: a", 2, "the last line is not `*** End Patch`");
        is("*** Begin Patch", 1, "the last line is not `*** End Patch`");
        is("*** Begin Patch\n*** End Patch", 1, "the patch names no file");
        is("*** Begin Patch\nx\n*** End Patch", 2, "the line belongs to no file");
        is("*** Begin Patch\n*** Add File:\n+x\n*** End Patch", 2, "`*** Add File:` without a path");
        is(
            "*** Begin Patch\n*** Add File: a\n+x\ny\n*** End Patch",
            4,
            "a line of an added file does not begin with `+`",
        );
        is(
            "*** Begin Patch\n*** Add File: a\n+x\n\n+y\n*** End Patch",
            4,
            "a line of an added file does not begin with `+`",
        );
        is("*** Begin Patch\n*** Update File: a\n*** End Patch", 2, "the update of `a` has no hunk");
        is("*** Begin Patch\n*** Update File: a\n@@ b\n*** End Patch", 3, "the hunk has no lines");
        is(
            "*** Begin Patch\n*** Update File: a\n@@\n-x\n*** Delete File: b\n-y\n*** End Patch",
            6,
            "the line belongs to no file",
        );
        is(
            "*** Begin Patch\n*** Update File: a\n@@\n-x\ny\n*** End Patch",
            5,
            "a line that is no context, removal or addition",
        );
        is(
            "*** Begin Patch\n*** Update File: a\n*** End of File\n*** End Patch",
            3,
            "`*** End of File` without lines before it",
        );
        is("*** Begin Patch\n*** Update File: a\n-x\n*** End of File\n-y\n*** End Patch", 5, "a hunk without `@@`");
        is("*** Begin Patch\n*** Update File: a\n*** Move to:\n*** End Patch", 3, "`*** Move to:` without a path");
        is("*** Begin Patch\n*** Begin Patch\n*** End Patch", 2, "`*** Begin Patch` inside of the patch");
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parser(
            lines in prop::collection::vec(prop_oneof![
                Just("*** Begin Patch"), Just("*** End Patch"), Just("*** Add File: a"), Just("*** Update File: b"),
                Just("*** Move to: c"), Just("@@"), Just("@@ x"), Just("@@ -1 @@"), Just("+a"), Just("-é"), Just(" b"),
                Just(""), Just("é"), Just("*** End of File"), Just("<<EOF"), Just("EOF"),
            ], 0..14),
        ) {
            let text = lines.join("\n");
            let _ = parse(&text);
            let _ = parse(&format!("*** Begin Patch\n*** Update File: b\n{text}\n*** End Patch"));
        }
    }
}
