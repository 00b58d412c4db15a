//! Cutting text. Every cut falls on a character boundary; a line ends at `\n`.

use memchr::{memchr, memchr_iter, memrchr, memrchr_iter};

/// Bytes that a preview leaves free for the notice; of a small limit, half.
pub(crate) const NOTICE_BYTES: usize = 512;
/// Lines that a preview leaves free for the notice; of a small limit, half.
pub(crate) const NOTICE_LINES: usize = 4;

/// What is shown of a text that does not fit. `head` is a prefix of it and `tail` a suffix, and they do not overlap.
/// Each is whole lines, unless that would waste more than half of its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preview<'a> {
    /// The start of the text.
    pub head: &'a str,
    /// The end of the text.
    pub tail: &'a str,
    /// Lines that neither part shows whole.
    pub omitted_lines: usize,
    /// Bytes between the parts.
    pub omitted_bytes: usize,
    /// The line in which `tail` starts, from 1.
    pub tail_first_line: usize,
    /// Lines of the whole text.
    pub total_lines: usize,
}

/// The head and the tail of a text over `max_lines` or `max_bytes`; `None` when it fits. Together they leave
/// [`NOTICE_LINES`] and [`NOTICE_BYTES`] of the limits free.
pub(crate) fn preview(text: &str, max_lines: usize, max_bytes: usize) -> Option<Preview<'_>> {
    let total_breaks = breaks(text);
    let total_lines = total_breaks + usize::from(ends_inside_line(text));
    if total_lines <= max_lines && text.len() <= max_bytes {
        return None;
    }
    let max_lines = max_lines - NOTICE_LINES.min(max_lines.div_ceil(2));
    let max_bytes = max_bytes - NOTICE_BYTES.min(max_bytes.div_ceil(2));
    let head = head(text, max_lines.div_ceil(2), max_bytes.div_ceil(2));
    let tail = tail(text, max_lines / 2, max_bytes / 2);

    let tail_breaks = breaks(tail);
    let before_tail = cut(text, text.len() - tail.len());
    let cut_off = usize::from(!tail.is_empty() && ends_inside_line(before_tail));
    let whole_in_tail = tail_breaks + usize::from(ends_inside_line(tail)) - cut_off;
    Some(Preview {
        head,
        tail,
        omitted_lines: total_lines - breaks(head) - whole_in_tail,
        omitted_bytes: text.len() - head.len() - tail.len(),
        tail_first_line: total_breaks - tail_breaks + 1,
        total_lines,
    })
}

/// As many of a tool's notices as fit half of `max_bytes`; those that do not are counted.
pub(crate) fn notices(mut notices: Vec<String>, max_bytes: usize) -> Vec<String> {
    const MORE: usize = 40;
    let (room, mut taken) = (max_bytes / 2, 0);
    let fits = notices.iter().take_while(|notice| {
        taken += notice.len();
        taken + MORE <= room
    });
    let fits = fits.count();
    if fits < notices.len() {
        let more = notices.len() - fits;
        notices.truncate(fits);
        if MORE <= room {
            notices.push(format!("[{more} more notices are left out.]"));
        }
    }
    notices
}

/// The longest prefix of at most `max_bytes` bytes.
pub(crate) fn cut(s: &str, max_bytes: usize) -> &str {
    let mut end = max_bytes.min(s.len());
    while !s.is_char_boundary(end) {
        end -= 1;
    }
    s.get(..end).unwrap_or_default()
}

/// Longer beginnings of words are kept: they are known by their form.
const MAX_WORD_BYTES: usize = 64;

/// The same, but for the beginning of a word: of a secret that was cut in two, a short half is not known as one.
pub(crate) fn cut_word(s: &str, max_bytes: usize) -> &str {
    let kept = cut(s, max_bytes);
    let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let goes_on = s.get(kept.len()..).is_some_and(|rest| rest.starts_with(in_word));
    let whole = if goes_on { kept.trim_end_matches(in_word) } else { kept };
    if kept.len() - whole.len() > MAX_WORD_BYTES { kept } else { whole }
}

/// The longest suffix of at most `max_bytes` bytes.
fn cut_front(s: &str, max_bytes: usize) -> &str {
    let mut start = s.len().saturating_sub(max_bytes);
    while !s.is_char_boundary(start) {
        start += 1;
    }
    s.get(start..).unwrap_or_default()
}

fn head(text: &str, max_lines: usize, max_bytes: usize) -> &str {
    let room = cut(text, max_bytes);
    let Some(last) = max_lines.checked_sub(1) else { return "" };
    let end = match memchr_iter(b'\n', room.as_bytes()).nth(last) {
        Some(line_end) => line_end + 1,
        None => match memrchr(b'\n', room.as_bytes()) {
            Some(line_end) if line_end + 1 >= room.len() / 2 => line_end + 1,
            _ => room.len(),
        },
    };
    room.get(..end).unwrap_or_default()
}

fn tail(text: &str, max_lines: usize, max_bytes: usize) -> &str {
    let room = cut_front(text, max_bytes);
    if max_lines == 0 {
        return "";
    }
    // The break that ends the text starts no line.
    let body = room.strip_suffix('\n').unwrap_or(room);
    let start = match memrchr_iter(b'\n', body.as_bytes()).nth(max_lines - 1) {
        Some(break_before) => break_before + 1,
        None if !ends_inside_line(cut(text, text.len() - room.len())) => 0,
        None => match memchr(b'\n', body.as_bytes()) {
            Some(break_before) if break_before < room.len() / 2 => break_before + 1,
            _ => 0,
        },
    };
    room.get(start..).unwrap_or_default()
}

fn breaks(text: &str) -> usize {
    memchr_iter(b'\n', text.as_bytes()).count()
}

fn ends_inside_line(text: &str) -> bool {
    !text.is_empty() && !text.ends_with('\n')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The counts by the definition, in the slowest way.
    fn check(text: &str, max_lines: usize, max_bytes: usize) {
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        let Some(p) = preview(text, max_lines, max_bytes) else {
            assert!(all.len() <= max_lines && text.len() <= max_bytes);
            return;
        };
        assert!(all.len() > max_lines || text.len() > max_bytes);
        assert!(text.starts_with(p.head) && text.ends_with(p.tail));
        assert_eq!(p.total_lines, all.len());
        assert_eq!(p.omitted_bytes, text.len() - p.head.len() - p.tail.len());
        let bytes_free = NOTICE_BYTES.min(max_bytes / 2);
        let lines_free = NOTICE_LINES.min(max_lines / 2);
        assert!(p.head.len() + p.tail.len() + bytes_free <= max_bytes);
        assert!(p.head.split_inclusive('\n').count() + p.tail.split_inclusive('\n').count() + lines_free <= max_lines);

        let (tail_at, mut at, mut hidden, mut first) = (text.len() - p.tail.len(), 0, 0, None);
        for (index, line) in all.iter().enumerate() {
            let end = at + line.len();
            hidden += usize::from(end > p.head.len() && at < tail_at);
            if tail_at < end && first.is_none() {
                first = Some(index + 1);
            }
            at = end;
        }
        assert_eq!(p.omitted_lines, hidden, "{text:?} {p:?}");
        if !p.tail.is_empty() {
            assert_eq!(Some(p.tail_first_line), first, "{text:?} {p:?}");
        }
    }

    #[test]
    fn a_text_that_fits_is_left_alone() {
        assert_eq!(preview("", 0, 0), None);
        assert_eq!(preview("a\nb\n", 2, 4), None);
        assert_eq!(preview("a\nb", 2, 3), None);
        assert!(preview("a\nb\n", 1, 4).is_some());
        assert!(preview("a\nb\n", 2, 3).is_some());
    }

    #[test]
    fn too_many_lines_show_the_first_and_the_last() {
        use std::fmt::Write;
        let text = (1..=30).fold(String::new(), |mut text, n| {
            writeln!(text, "{n}").unwrap();
            text
        });
        let p = preview(&text, 10, 50_000).unwrap();
        assert_eq!((p.head, p.tail), ("1\n2\n3\n", "28\n29\n30\n"));
        assert_eq!((p.omitted_lines, p.tail_first_line, p.total_lines), (24, 28, 30));
    }

    #[test]
    fn one_enormous_line_shows_both_its_ends() {
        let text = format!("A{}Z", "x".repeat(100_000));
        let p = preview(&text, 2000, 51_200).unwrap();
        assert_eq!((p.head.len(), p.tail.len()), (25_344, 25_344));
        assert!(p.head.starts_with('A') && p.tail.ends_with('Z'));
        assert_eq!((p.omitted_lines, p.tail_first_line, p.total_lines), (1, 1, 1));
    }

    #[test]
    fn lines_stay_whole_where_that_wastes_little() {
        let text = "0123456789\n".repeat(1000);
        let p = preview(&text, 2000, 4000).unwrap();
        assert!(p.head.ends_with("9\n") && p.tail.starts_with("01"));
        let text = format!("first\n{}\nlast\n", "x".repeat(9000));
        let p = preview(&text, 2000, 4000).unwrap();
        assert!(p.head.ends_with('x') && p.tail.starts_with('x') && p.tail.ends_with("\nlast\n"));
        assert_eq!((p.omitted_lines, p.tail_first_line, p.total_lines), (1, 2, 3));
    }

    #[test]
    fn no_limit_cuts_a_character() {
        for wide in ["─", "🍸", "é"] {
            for limit in 0..1200 {
                for back in 0..=4 {
                    let text = "a".repeat(usize::saturating_sub(limit, back)) + &wide.repeat(10);
                    let kept = cut(&text, limit);
                    assert!(kept.len() <= limit && limit - kept.len() < 4 && text.starts_with(kept));
                    check(&text, 2000, limit);
                    check(&(wide.repeat(limit / 2) + &text), 2000, limit);
                }
            }
        }
        assert_eq!((cut("─x", 2), cut("─x", 3), cut("─x", 99)), ("", "─", "─x"));
    }

    proptest! {
        #[test]
        fn counts_are_true(text in "[a─🍸\n]{0,60}", max_lines in 0_usize..14, max_bytes in 0_usize..70) {
            check(&text, max_lines, max_bytes);
        }

        #[test]
        fn counts_are_true_of_long_texts(
            lines in prop::collection::vec("[a─]{0,40}", 0..200),
            max_lines in 0_usize..300,
            max_bytes in 0_usize..6000,
        ) {
            check(&lines.join("\n"), max_lines, max_bytes);
        }
    }
}
