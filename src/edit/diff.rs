//! The change of a text as a unified diff, bounded in size and time.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use super::lines::lines;
use crate::output::bound::cut;

/// Where more than this differs it is not compared line by line, in bytes.
const MAX_COMPARED: usize = 512 * 1024;
/// The longest diff, in bytes.
const MAX_BYTES: usize = 16 * 1024;
/// The longest time that the lines may be compared.
const MAX_TIME: Duration = Duration::from_millis(100);
/// Unchanged lines shown round a change.
const CONTEXT: usize = 3;

/// How a text changed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Diff {
    pub(crate) additions: usize,
    pub(crate) deletions: usize,
    /// The hunks, with a header; `None` where they would be too long to be of use.
    pub(crate) text: Option<String>,
}

/// The change from `old` to `new` of the file named `path`. Only what lies between their common beginning and end is
/// compared, so that a small change of a large file costs little.
pub(crate) fn diff(path: &str, old: &[u8], new: &[u8]) -> Diff {
    let head = common_head(old, new);
    let head = memchr::memrchr(b'\n', old.get(..head).unwrap_or_default()).map_or(0, |at| at + 1);
    let (old_rest, new_rest) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = common_tail(old_rest, new_rest);
    // Of the common end only whole lines: what follows a newline in it.
    let tail = {
        let end = old_rest.get(old_rest.len() - tail..).unwrap_or_default();
        let whole = tail == old_rest.len().min(new_rest.len())
            && [old_rest, new_rest].iter().all(|r| r.len() == tail || r.get(r.len() - tail - 1) == Some(&b'\n'));
        if whole { tail } else { memchr::memchr(b'\n', end).map_or(0, |at| end.len() - at - 1) }
    };
    let middle = |rest: &[u8]| rest.len() - tail;
    let (old_middle, new_middle) = (middle(old_rest), middle(new_rest));
    let count = |rest: &[u8], to: usize| lines(rest.get(..to).unwrap_or_default()).count();
    if old_middle.max(new_middle) > MAX_COMPARED {
        return Diff { additions: count(new_rest, new_middle), deletions: count(old_rest, old_middle), text: None };
    }
    // A few lines before and after, for context.
    let before = memchr::memrchr_iter(b'\n', old.get(..head.saturating_sub(1)).unwrap_or_default()).nth(CONTEXT - 1);
    let before = before.map_or(0, |at| at + 1);
    let after = |rest: &[u8], from: usize| {
        let end = rest.get(from..).unwrap_or_default();
        from + memchr::memchr_iter(b'\n', end).nth(CONTEXT - 1).map_or(end.len(), |at| at + 1)
    };
    let piece = |whole: &'_ [u8], rest_end: usize| before..(head + rest_end).min(whole.len());
    let old_piece = old.get(piece(old, after(old_rest, old_middle))).unwrap_or_default();
    let new_piece = new.get(piece(new, after(new_rest, new_middle))).unwrap_or_default();
    let first = lines(old.get(..before).unwrap_or_default()).count();
    compare(path, old_piece, new_piece, first)
}

/// Blocks that are compared in one go.
const BLOCK: usize = 4096;

fn common_head(a: &[u8], b: &[u8]) -> usize {
    let blocks = BLOCK * a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK)).take_while(|(a, b)| a == b).count();
    let rest = a.iter().zip(b).skip(blocks);
    blocks + rest.take_while(|(a, b)| a == b).count()
}

fn common_tail(a: &[u8], b: &[u8]) -> usize {
    let blocks = BLOCK * a.rchunks_exact(BLOCK).zip(b.rchunks_exact(BLOCK)).take_while(|(a, b)| a == b).count();
    let rest = a.iter().rev().zip(b.iter().rev()).skip(blocks);
    blocks + rest.take_while(|(a, b)| a == b).count()
}

fn compare(path: &str, old: &[u8], new: &[u8], first: usize) -> Diff {
    fn split(text: &[u8]) -> Vec<&[u8]> {
        text.split_inclusive(|b| *b == b'\n').collect()
    }
    let (old, new) = (split(old), split(new));
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(Instant::now() + MAX_TIME));
    let changed =
        |pick: fn(&DiffOp) -> usize| ops.iter().filter(|op| op.tag() != DiffTag::Equal).map(pick).sum::<usize>();
    let (additions, deletions) = (changed(|op| op.new_range().len()), changed(|op| op.old_range().len()));
    if additions + deletions == 0 {
        return Diff { additions, deletions, text: None };
    }
    let mut text = format!("--- {path}\n+++ {path}\n");
    for group in group_diff_ops(ops, CONTEXT) {
        let (Some(from), Some(to)) = (group.first(), group.last()) else { continue };
        let place = |start: usize, end: usize| {
            let (start, count) = (start + first, end - start);
            // Of no lines the number is that of the line before.
            let number = if count == 0 { start } else { start + 1 };
            if count == 1 { number.to_string() } else { format!("{number},{count}") }
        };
        let old_place = place(from.old_range().start, to.old_range().end);
        let new_place = place(from.new_range().start, to.new_range().end);
        let _ = writeln!(text, "@@ -{old_place} +{new_place} @@");
        for op in &group {
            let (removed, added) = (old.get(op.old_range()), new.get(op.new_range()));
            let signs: &[(char, Option<&[&[u8]]>)] = match op.tag() {
                DiffTag::Equal => &[(' ', removed)],
                _ => &[('-', removed), ('+', added)],
            };
            for (sign, lines) in signs {
                for line in lines.iter().copied().flatten() {
                    text.push(*sign);
                    text.push_str(&String::from_utf8_lossy(line));
                    if !line.ends_with(b"\n") {
                        text.push_str("\n\\ No newline at end of file\n");
                    }
                }
            }
        }
        if text.len() > MAX_BYTES {
            let kept = cut(&text, MAX_BYTES);
            let end = memchr::memrchr(b'\n', kept.as_bytes()).map_or(0, |at| at + 1);
            text.truncate(end);
            text.push_str("[the diff goes on]\n");
            break;
        }
    }
    Diff { additions, deletions, text: Some(text) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn line_numbers_are_those_of_the_whole_text() {
        let old = (1..=30).map(|n| n.to_string() + "\n").collect::<String>();
        let new = old.replace("20\n", "twenty\n");
        let found = diff("f", old.as_bytes(), new.as_bytes());
        assert_eq!((found.additions, found.deletions), (1, 1));
        let text = "--- f\n+++ f\n@@ -17,7 +17,7 @@\n 17\n 18\n 19\n-20\n+twenty\n 21\n 22\n 23\n";
        assert_eq!(found.text.as_deref(), Some(text));
    }

    #[test]
    fn beginnings_ends_and_missing_newlines_are_shown() {
        let text = |old: &str, new: &str| diff("f", old.as_bytes(), new.as_bytes()).text.unwrap();
        assert_eq!(text("", "a\n"), "--- f\n+++ f\n@@ -0,0 +1 @@\n+a\n");
        assert_eq!(text("a\n", ""), "--- f\n+++ f\n@@ -1 +0,0 @@\n-a\n");
        assert_eq!(text("a\nb", "a\nb\n"), "--- f\n+++ f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n");
        assert_eq!(text("a\r\nb\r\n", "a\nb\r\n"), "--- f\n+++ f\n@@ -1,2 +1,2 @@\n-a\r\n+a\n b\r\n");
        assert_eq!(diff("f", b"a", b"a"), Diff { additions: 0, deletions: 0, text: None });
    }

    #[test]
    fn a_long_diff_is_cut_at_a_line_and_says_so() {
        let new = (0..5000).map(|n| n.to_string() + "\n").collect::<String>();
        let found = diff("f", b"", new.as_bytes());
        assert_eq!((found.additions, found.deletions), (5000, 0));
        let text = found.text.unwrap();
        assert!(text.len() < MAX_BYTES + 40 && text.ends_with("\n[the diff goes on]\n"));
        let huge = "x\n".repeat(MAX_COMPARED);
        assert_eq!(diff("f", b"", huge.as_bytes()), Diff { additions: MAX_COMPARED, deletions: 0, text: None });
    }

    proptest! {
        #[test]
        fn a_diff_says_all_that_changed(old in "[ab\n]{0,40}", new in "[ab\n]{0,40}") {
            let found = diff("f", old.as_bytes(), new.as_bytes());
            let text = found.text.unwrap_or_default();
            let count = |sign: char| text.lines().skip(2).filter(|line| line.starts_with(sign)).count();
            prop_assert_eq!((found.additions, found.deletions), (count('+'), count('-')));
            prop_assert_eq!(old == new, text.is_empty());
        }
    }
}
