//! The matching of `edit_file`: exact bytes, but that a line break matches a line break. Only what was quoted changes.

use std::borrow::Cow;
use std::ops::Range;

use super::lines::{Line, lines, number, plain};

/// The most places that a message numbers.
const MAX_PLACES: usize = 1000;

/// One replacement that was made.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replaced {
    pub(crate) body: Vec<u8>,
    pub(crate) count: usize,
}

/// Why nothing was replaced.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The text is not there.
    NoMatch,
    /// It is there more than once: the numbers of the lines where it begins.
    Ambiguous(Vec<usize>),
    /// It is there, and what would stand in its place is the same.
    Same,
    /// A place lies in the middle of a character; the number of its line.
    Splits(usize),
}

/// Replaces `old`, which is not empty, by `new`: the one place where it is, or with `all` every place, from left to
/// right. Places may overlap when they are counted for being one. `pairs` says that a byte of two-byte characters may
/// look like ASCII.
pub(crate) fn replace(body: &[u8], old: &[u8], new: &[u8], all: bool, pairs: bool) -> Result<Replaced, Refused> {
    let mut places = Places::new(body, old);
    let found: Vec<Range<usize>> = if all { places.apart().collect() } else { places.first(MAX_PLACES) };
    match found.as_slice() {
        [] => return Err(Refused::NoMatch),
        [_, _, ..] if !all => {
            return Err(Refused::Ambiguous(found.iter().map(|place| number(body, place.start)).collect()));
        }
        _ => {}
    }
    if pairs && let Some(place) = found.iter().find(|place| super::encoding::splits_pair(body, place.start)) {
        return Err(Refused::Splits(number(body, place.start)));
    }
    let new = plain(new);
    let mut out = Vec::with_capacity(body.len() + new.len());
    let mut done = 0;
    for place in &found {
        out.extend_from_slice(body.get(done..place.start).unwrap_or_default());
        fit(body, place, &new, &mut out);
        done = place.end;
    }
    out.extend_from_slice(body.get(done..).unwrap_or_default());
    if out == body {
        return Err(Refused::Same);
    }
    Ok(Replaced { body: out, count: found.len() })
}

/// The number of each line where `text` begins, as many as a message may name.
pub(crate) fn find(body: &[u8], text: &[u8]) -> Vec<usize> {
    if text.is_empty() {
        return Vec::new();
    }
    Places::new(body, text).first(MAX_PLACES).iter().map(|place| number(body, place.start)).collect()
}

/// Where a text is in a body, whichever way either writes its line breaks.
struct Places<'a> {
    /// The body with plain line breaks where the text holds one, and where in it a `\r` was left out.
    body: Cow<'a, [u8]>,
    dropped: Vec<usize>,
    text: Cow<'a, [u8]>,
}

impl<'a> Places<'a> {
    fn new(body: &'a [u8], text: &'a [u8]) -> Self {
        let text = plain(text);
        let breaks = memchr::memchr(b'\n', &text).is_some();
        if !breaks || memchr::memmem::find(body, b"\r\n").is_none() {
            return Self { body: Cow::Borrowed(body), dropped: Vec::new(), text };
        }
        let (mut out, mut dropped) = (Vec::with_capacity(body.len()), Vec::new());
        for line in lines(body) {
            out.extend_from_slice(line.content);
            if line.end == b"\r\n" {
                dropped.push(out.len());
            }
            out.extend_from_slice(if line.end.is_empty() { b"" } else { b"\n" });
        }
        Self { body: Cow::Owned(out), dropped, text }
    }

    fn next(&self, from: usize) -> Option<usize> {
        let at = memchr::memmem::find(self.body.get(from..)?, &self.text)?;
        Some(from + at)
    }

    /// A place as a range of the body that was given. A break belongs to it whole or not at all.
    fn place(&self, at: usize) -> Range<usize> {
        let end = at + self.text.len();
        let before = |limit: usize| self.dropped.partition_point(|dropped| *dropped < limit);
        at + before(at)..end + before(end)
    }

    /// The first `most` places, overlapping ones too.
    fn first(&mut self, most: usize) -> Vec<Range<usize>> {
        let mut from = 0;
        let next = std::iter::from_fn(|| {
            let at = self.next(from)?;
            from = at + 1;
            Some(self.place(at))
        });
        next.take(most).collect()
    }

    /// The places from left to right that do not overlap.
    fn apart(&mut self) -> impl Iterator<Item = Range<usize>> {
        let finder = memchr::memmem::Finder::new(&*self.text);
        let found: Vec<usize> = finder.find_iter(&self.body).collect();
        found.into_iter().map(|at| self.place(at))
    }
}

/// Writes `new` in place of `place`. Lines that are the same at its beginning and end keep their bytes; new breaks take
/// the style of the lines that they replace.
fn fit(body: &[u8], place: &Range<usize>, new: &[u8], out: &mut Vec<u8>) {
    let region = body.get(place.clone()).unwrap_or_default();
    if memchr::memchr(b'\n', new).is_none() {
        out.extend_from_slice(new);
        return;
    }
    let old: Vec<Line<'_>> = lines(region).collect();
    let new: Vec<&[u8]> = new.split_inclusive(|b| *b == b'\n').collect();
    let same = |(old, new): (&Line<'_>, &&[u8])| match new.strip_suffix(b"\n") {
        Some(content) => !old.end.is_empty() && old.content == content,
        None => old.end.is_empty() && old.content == *new,
    };
    let head = old.iter().zip(&new).take_while(|pair| same(*pair)).count();
    let least = old.len().min(new.len());
    let tail = old.iter().rev().zip(new.iter().rev()).take(least - head).take_while(|pair| same(*pair)).count();
    let raw = |lines: &[Line<'_>], out: &mut Vec<u8>| {
        for line in lines {
            out.extend_from_slice(line.content);
            out.extend_from_slice(line.end);
        }
    };
    raw(old.get(..head).unwrap_or_default(), out);
    let middle = old.get(head..old.len() - tail).unwrap_or_default();
    let mut ends = middle.iter().map(|line| line.end).filter(|end| !end.is_empty());
    let (above, below) = old.split_at(old.len() - tail);
    let fallback = || above.iter().rev().chain(below).map(|line| line.end).find(|end| !end.is_empty());
    let mut end: Option<&[u8]> = None;
    for line in new.get(head..new.len() - tail).unwrap_or_default() {
        let Some(content) = line.strip_suffix(b"\n") else {
            out.extend_from_slice(line);
            continue;
        };
        end = ends.next().or(end).or_else(fallback).or_else(|| own_end(body, place));
        out.extend_from_slice(content);
        out.extend_from_slice(end.unwrap_or(b"\n"));
    }
    raw(old.get(old.len() - tail..).unwrap_or_default(), out);
}

/// How the line that `place` ends in ends; of a last line without an end, the line before it.
fn own_end<'a>(body: &'a [u8], place: &Range<usize>) -> Option<&'a [u8]> {
    let at = memchr::memchr(b'\n', body.get(place.end..)?).map(|at| place.end + at);
    let at = at.or_else(|| memchr::memrchr(b'\n', body.get(..place.start)?))?;
    Some(Line::of(body.get(at.saturating_sub(1)..=at)?).end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn edit(body: &str, old: &str, new: &str) -> Result<String, Refused> {
        let done = replace(body.as_bytes(), old.as_bytes(), new.as_bytes(), false, false);
        done.map(|done| String::from_utf8(done.body).unwrap())
    }

    fn all(body: &str, old: &str, new: &str) -> (String, usize) {
        let done = replace(body.as_bytes(), old.as_bytes(), new.as_bytes(), true, false).unwrap();
        (String::from_utf8(done.body).unwrap(), done.count)
    }

    #[test]
    fn line_breaks_match_and_keep_their_style() {
        let is = |body: &str, old: &str, new: &str, expected: &str| {
            assert_eq!(edit(body, old, new).as_deref(), Ok(expected), "{body:?}: {old:?} to {new:?}");
        };
        is("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\nc\r\n");
        is("a\r\nb\r\nc\r\n", "b", "p\nq", "a\r\np\r\nq\r\nc\r\n");
        is("a\r\nb\r\nc\r\n", "b", "p\r\nq", "a\r\np\r\nq\r\nc\r\n");
        is("a\r\nb\r\nc\r\n", "b\nc", "b\rc", "a\r\nb\rc\r\n");
        is("a\nb\nc\n", "a\r\nb", "x\r\ny", "x\ny\nc\n");
        is("one\r\ntwo\nthree\r\nfour", "two", "TWO", "one\r\nTWO\nthree\r\nfour");
        is("one\r\ntwo\nthree\r\nfour", "three", "3a\n3b", "one\r\ntwo\n3a\r\n3b\r\nfour");
        is("one\r\ntwo\nthree\r\n", "one\ntwo\nthree", "one\n2\nthree", "one\r\n2\nthree\r\n");
        is("one\r\ntwo\nthree\r\n", "one\ntwo\nthree", "one\nnew\ntwo\nthree", "one\r\nnew\r\ntwo\nthree\r\n");
        is("a\r\nb", "b", "p\nq", "a\r\np\r\nq");
        is("one line", "line", "x\r\ny", "one x\ny");
        is("x\r\ny", "\ny", "\nz", "x\r\nz");
        is("all:\n\techo hi\n\techo bye\n", "hi", "ho", "all:\n\techo ho\n\techo bye\n");
    }

    #[test]
    fn nothing_loose_matches() {
        for (body, old) in [
            ("foo   bar baz\n", "foo bar"),
            ("foo\nbar\n", "foo "),
            ("A.\n\nB.\n", "A.\nB."),
            ("\techo bye", "        echo bye"),
            ("x\r\n", "x\r"),
            ("abc", "abcd"),
        ] {
            let expected = if old == "x\r" { Ok("XY\n".to_owned()) } else { Err(Refused::NoMatch) };
            assert_eq!(edit(body, old, "XY"), expected, "{old:?} in {body:?}");
        }
    }

    #[test]
    fn places_are_counted_with_overlaps_and_replaced_without() {
        assert_eq!(edit("aaa", "aa", "b"), Err(Refused::Ambiguous(vec![1, 1])));
        assert_eq!(all("aaaa\naa", "aa", "b"), ("bb\nb".to_owned(), 3));
        assert_eq!(edit("x\ny\r\nx\r\ny\n", "x\ny", "z"), Err(Refused::Ambiguous(vec![1, 3])));
        assert_eq!(all("x\ny\r\nx\r\ny\n", "x\ny", "z\nw"), ("z\nw\r\nz\r\nw\n".to_owned(), 2));
        assert_eq!(edit("a\r\nb", "a\nb", "a\r\nb"), Err(Refused::Same));
    }

    #[test]
    fn new_text_is_no_template() {
        for new in ["$$100", "$&", "$`", "$'", "$1", "$name", "${name}", "\\1", "\\g<0>", "\\n", "%s", "{0}"] {
            assert_eq!(edit("price: X;\n", "X", new), Ok(format!("price: {new};\n")));
            assert_eq!(all("X a.b*(X;", "X", new), (format!("{new} a.b*({new};"), 2));
            assert_eq!(edit("a.b*(X;\n", "a.b*(X;", new), Ok(format!("{new}\n")));
        }
    }

    /// Bytes in which one kind of line break is used, and a text that is there once.
    fn file_and_text() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let part = || prop::collection::vec(prop_oneof![Just(b'\n'), b'a'..=b'c', any::<u8>()], 0..30);
        (part(), "[x-z\n]{1,12}", part(), any::<bool>()).prop_map(|(before, text, after, wide)| {
            let style = |bytes: Vec<u8>| -> Vec<u8> {
                let clean = bytes.into_iter().filter(|b| *b != b'\r');
                if wide {
                    clean.flat_map(|b| if b == b'\n' { vec![b'\r', b] } else { vec![b] }).collect()
                } else {
                    clean.collect()
                }
            };
            let mut file = style(before);
            file.extend(style(text.clone().into_bytes()));
            file.extend(style(after));
            (file, text.into_bytes())
        })
    }

    proptest! {
        #[test]
        fn an_edit_and_its_inverse_are_identity((file, old) in file_and_text(), new in "[0-9\n]{1,12}") {
            let new = new.into_bytes();
            prop_assume!(find(&file, &old).len() == 1 && find(&file, &new).is_empty() && old != new);
            let there = replace(&file, &old, &new, false, false).unwrap();
            prop_assume!(find(&there.body, &new).len() == 1);
            // In a file whose only breaks were replaced the style is gone with them.
            prop_assume!(memchr::memchr(b'\n', &there.body).is_some() || memchr::memchr(b'\n', &old).is_none());
            prop_assert_eq!(replace(&there.body, &new, &old, false, false).unwrap().body, file);
        }

        #[test]
        fn bytes_outside_the_places_stay(
            file in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'a'), any::<u8>()], 0..60),
            old in "[a\n]{1,3}",
            new in "[bc\n]{0,4}",
        ) {
            let places: Vec<Range<usize>> = Places::new(&file, old.as_bytes()).apart().collect();
            let Ok(done) = replace(&file, old.as_bytes(), new.as_bytes(), true, false) else { return Ok(()) };
            prop_assert_eq!(done.count, places.len());
            // What stands in each place is the new text but for its breaks.
            let (mut at, mut from) = (0, 0);
            for place in places {
                let kept = &file[from..place.start];
                prop_assert_eq!(&done.body[at..at + kept.len()], kept);
                at += kept.len();
                let mut lines = new.split('\n').peekable();
                while let Some(line) = lines.next() {
                    prop_assert_eq!(&done.body[at..at + line.len()], line.as_bytes());
                    at += line.len();
                    if lines.peek().is_some() {
                        at += if done.body[at..].starts_with(b"\r\n") { 2 } else { 1 };
                        prop_assert_eq!(done.body[at - 1], b'\n');
                    }
                }
                from = place.end;
            }
            prop_assert_eq!(&done.body[at..], &file[from..]);
        }
    }
}
