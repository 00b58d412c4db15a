//! Why a quoted text is not in a file, and what comes near it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::lines::{excerpt, lines, list};
use super::replace::find;

/// Larger files are not looked through for near lines, in bytes.
const MAX_BODY: usize = 4 << 20;
/// How long near lines are looked for.
const MAX_TIME: Duration = Duration::from_millis(50);
/// Lines that are less alike are no candidates.
const LEAST_RATIO: f32 = 0.6;
const MAX_NEAR: usize = 3;

/// What is known of a text that is not there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Near {
    /// What is likely wrong, as sentences.
    pub(crate) causes: Vec<String>,
    /// The lines that come nearest, with their numbers.
    pub(crate) lines: Vec<(usize, String)>,
}

impl Near {
    /// All of it in a hint's words.
    pub(crate) fn hint(&self, advice: &str) -> String {
        let mut text = self.causes.join(" ");
        if !self.lines.is_empty() {
            text.push_str(if text.is_empty() { "The nearest lines are:" } else { " The nearest lines are:" });
            for (number, line) in &self.lines {
                let _ = write!(text, "\n{number:>6}\t{line}");
            }
            text.push('\n');
        } else if !text.is_empty() {
            text.push(' ');
        }
        text + advice
    }
}

/// Explains why `old`, which was to become `new`, is not in `body`. `already`: whether the answer may be that it was
/// replaced before.
pub(crate) fn near(body: &[u8], old: &str, new: Option<&str>) -> Near {
    let mut causes: Vec<String> = Vec::new();
    let at = |text: &str| Some(find(body, text.as_bytes())).filter(|places| !places.is_empty());
    if let Some(places) = without_numbers(old).and_then(|bare| at(&bare)) {
        causes.push(format!(
            "It holds line numbers of read_file, which are not in the file: without them it is at line {}.",
            list(&places)
        ));
    }
    if let Some(places) = new.filter(|new| new.trim().len() > 2).and_then(at) {
        causes.push(format!("The new text is there already, at line {}: was the edit made before?", list(&places)));
    }
    if old.ends_with('\n') {
        let bare = old.trim_end_matches(['\r', '\n']);
        if !bare.is_empty() && body.ends_with(bare.as_bytes()) {
            causes.push("The last line of the file has no newline at its end.".to_owned());
        }
    }
    if old.contains('\u{fffd}') {
        causes.push("U+FFFD stands for bytes that are not UTF-8: quote only what lies beside them.".to_owned());
    }
    if memchr::memchr(b'\r', body).is_some() && old.contains('\n') {
        let broken: Vec<u8> = body.iter().map(|b| if *b == b'\r' { b'\n' } else { *b }).collect();
        if memchr::memmem::find(body, b"\r\n").is_none() && !find(&broken, old.as_bytes()).is_empty() {
            causes.push("Its line endings differ: lines of the file end in a lone carriage return.".to_owned());
        }
    }
    if let Some(places) = unescaped(old).and_then(|bare| at(&bare)) {
        causes.push(format!("It is escaped once too often: unescaped it is at line {}.", list(&places)));
    }
    if causes.is_empty() && body.len() <= MAX_BODY {
        let whole = String::from_utf8_lossy(body);
        for (fold, what) in [(squeeze as fn(&str) -> String, "spaces and tabs"), (folded, "quotes, dashes or spaces")] {
            let places = alike(&whole, old, fold);
            if let [first, ..] = places.as_slice() {
                let line = lines(body).nth(first - 1).map_or(&b""[..], |line| line.content);
                let tabs = line.starts_with(b"\t") != old.starts_with('\t');
                let more = if tabs { " (one indents with tabs, the other does not)" } else { "" };
                causes.push(format!("At line {} only its {what} differ{more}.", list(&places)));
                return Near { causes, lines: quote(body, *first, old.lines().count()) };
            }
        }
        return Near { causes, lines: nearest(&whole, old) };
    }
    Near { causes, lines: Vec::new() }
}

fn quote(body: &[u8], first: usize, count: usize) -> Vec<(usize, String)> {
    let lines = lines(body).enumerate().skip(first - 1).take(count.clamp(1, 8));
    lines.map(|(at, line)| (at + 1, excerpt(line.content))).collect()
}

/// `text` without the number that each of its lines begins with, if each does.
fn without_numbers(text: &str) -> Option<String> {
    let bare = |line: &str| {
        if line.trim().is_empty() {
            return Some(line.to_owned());
        }
        let rest = line.trim_start_matches(' ');
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = rest.split_at_checked(digits)?;
        let separators = ["\t", ": ", ":", " | ", "|", "\u{2192}"];
        let rest = separators.iter().find_map(|separator| rest.strip_prefix(separator))?;
        (!number.is_empty()).then(|| rest.to_owned())
    };
    let lines: Option<Vec<String>> = text.split('\n').map(bare).collect();
    lines.map(|lines| lines.join("\n")).filter(|bare| bare != text)
}

/// `text` with its backslash escapes as what they stand for, if it has any.
fn unescaped(text: &str) -> Option<String> {
    let pairs = [("\\n", "\n"), ("\\t", "\t"), ("\\\"", "\""), ("\\'", "'"), ("\\\\", "\\")];
    let bare = pairs.iter().fold(text.to_owned(), |text, (escape, what)| text.replace(escape, what));
    (bare != text).then_some(bare)
}

/// A line without the spaces at its ends and with single ones inside.
fn squeeze(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The same with plain punctuation.
fn folded(line: &str) -> String {
    squeeze(&line.chars().map(super::hunks::plain_punctuation).collect::<String>())
}

/// The numbers of the lines where `old` would be if lines were `fold`ed and blank ones left out.
fn alike(body: &str, old: &str, fold: fn(&str) -> String) -> Vec<usize> {
    let folded = |text: &str| -> Vec<(usize, String)> {
        let lines = text.split('\n').enumerate().map(|(at, line)| (at + 1, fold(line)));
        lines.filter(|(_, line)| !line.is_empty()).collect()
    };
    let (body, old) = (folded(body), folded(old));
    let (Some((_, first)), Some((_, last))) = (old.first(), old.last()) else { return Vec::new() };
    let matches = |window: &[(usize, String)]| {
        let mut pairs = window.iter().zip(&old).map(|((_, body), (_, old))| (body, old));
        match (window, old.len()) {
            ([(_, only)], 1) => only.contains(first.as_str()),
            ([(_, top), inner @ .., (_, bottom)], _) => {
                top.ends_with(first.as_str())
                    && bottom.starts_with(last.as_str())
                    && pairs.by_ref().skip(1).take(inner.len()).all(|(body, old)| body == old)
            }
            _ => false,
        }
    };
    let windows = body.windows(old.len()).filter(|window| matches(window));
    windows.filter_map(|window| window.first().map(|(number, _)| *number)).collect()
}

/// The lines most like the longest one of `old`.
fn nearest(body: &str, old: &str) -> Vec<(usize, String)> {
    let wanted = old.lines().map(str::trim).max_by_key(|line| line.len()).unwrap_or_default();
    if wanted.len() < 3 {
        return Vec::new();
    }
    let deadline = Instant::now() + MAX_TIME;
    let mut near: Vec<(f32, usize, &str)> = Vec::new();
    for (at, line) in body.split('\n').enumerate() {
        let trimmed = line.trim();
        // The share of characters in common is at most this.
        let bound = 2 * trimmed.len().min(wanted.len());
        #[expect(clippy::cast_precision_loss, reason = "a rough ratio")]
        let bound = bound as f32 / (trimmed.len() + wanted.len()) as f32;
        if bound < LEAST_RATIO || trimmed.len() > 1000 {
            continue;
        }
        if Instant::now() > deadline {
            break;
        }
        let ratio = similar::TextDiff::configure().deadline(deadline).diff_chars(wanted, trimmed).ratio();
        if ratio >= LEAST_RATIO {
            near.push((ratio, at + 1, line));
        }
    }
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    near.truncate(MAX_NEAR);
    near.sort_by_key(|(_, number, _)| *number);
    near.into_iter().map(|(_, number, line)| (number, excerpt(line.trim_end_matches('\r').as_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(body: &str, old: &str, new: &str) -> Vec<String> {
        near(body.as_bytes(), old, Some(new)).causes
    }

    #[test]
    fn the_likely_cause_is_named() {
        let is = |body: &str, old: &str, new: &str, expected: &str| {
            assert_eq!(causes(body, old, new), [expected], "{old:?} in {body:?}");
        };
        is(
            "def f():\n    return 1\n",
            "     1\tdef f():\n     2\t    return 1",
            "x",
            "It holds line numbers of read_file, which are not in the file: without them it is at line 1.",
        );
        is(
            "a\nnew line\n",
            "old line",
            "new line",
            "The new text is there already, at line 2: was the edit made before?",
        );
        is("a\nlast", "last\n", "x", "The last line of the file has no newline at its end.");
        is("foo   bar baz\n", "foo bar", "XY", "At line 1 only its spaces and tabs differ.");
        is("A.\n\nB.\n", "A.\nB.", "C", "At line 1 only its spaces and tabs differ.");
        is(
            "all:\n\techo bye\n",
            "        echo bye",
            "x",
            "At line 2 only its spaces and tabs differ (one indents with tabs, the other does not).",
        );
        is("say(\u{201c}hi\u{201d})\n", "say(\"hi\")", "x", "At line 1 only its quotes, dashes or spaces differ.");
        is("a\rb\r", "a\nb", "x", "Its line endings differ: lines of the file end in a lone carriage return.");
        is("a \"b\"\n", "a \\\"b\\\"", "x", "It is escaped once too often: unescaped it is at line 1.");
    }

    #[test]
    fn the_nearest_lines_are_shown_with_their_numbers() {
        let body = "fn alpha() {}\nfn betta() {}\nfn gamma() {}\n";
        let found = near(body.as_bytes(), "fn beta() {}", None);
        assert_eq!(found.lines[0].0, 1);
        assert!(found.lines.contains(&(2, "fn betta() {}".to_owned())));
        assert_eq!(near(b"zzz\n", "entirely other", None), Near::default());
    }
}
