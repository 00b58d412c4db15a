//! Lines as every tool counts them: a line ends at `\n`, and a `\r` before it belongs to its end.

use std::borrow::Cow;

/// One line of a file: its content, and the `\n`, `\r\n` or nothing that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) content: &'a [u8],
    pub(crate) end: &'a [u8],
}

impl<'a> Line<'a> {
    pub(crate) fn of(raw: &'a [u8]) -> Self {
        let content = raw.strip_suffix(b"\n").map_or(raw, |rest| rest.strip_suffix(b"\r").unwrap_or(rest));
        Self { content, end: raw.get(content.len()..).unwrap_or_default() }
    }
}

/// The lines of `body`; a last one without an end counts.
pub(crate) fn lines(body: &[u8]) -> impl Iterator<Item = Line<'_>> {
    body.split_inclusive(|b| *b == b'\n').map(Line::of)
}

/// `text` with each `\r\n` as `\n`.
pub(crate) fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memmem::find(text, b"\r\n").is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    for line in lines(text) {
        out.extend_from_slice(line.content);
        out.extend_from_slice(if line.end.is_empty() { b"" } else { b"\n" });
    }
    Cow::Owned(out)
}

/// The number of the line that byte `at` lies in, from 1.
pub(crate) fn number(body: &[u8], at: usize) -> usize {
    1 + memchr::memchr_iter(b'\n', body.get(..at).unwrap_or(body)).count()
}

/// `text` as a message quotes it: the beginning of it, on one line.
pub(crate) fn excerpt(text: &[u8]) -> String {
    const MAX: usize = 160;
    let text = String::from_utf8_lossy(text.get(..text.len().min(4 * MAX)).unwrap_or(text));
    let shown: String = text.chars().take(MAX).map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
    if text.chars().nth(MAX).is_some() { shown + "…" } else { shown }
}

/// Line numbers for a message: all of them, as far as a message can hold them.
pub(crate) fn list(numbers: &[usize]) -> String {
    const MAX: usize = 200;
    let shown: Vec<String> = numbers.iter().take(MAX).map(usize::to_string).collect();
    let more = if numbers.len() > MAX { format!(" and {} more", numbers.len() - MAX) } else { String::new() };
    format!("{}{more}", shown.join(", "))
}
