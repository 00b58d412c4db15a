//! A file's bytes as text that can be edited and put back: what an edit does not touch keeps its bytes.

use std::borrow::Cow;

/// How a file's text is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Utf8,
    Utf8Bom,
    Utf16Le,
    Utf16Be,
    /// Bytes that are not UTF-8 and bear no mark: perhaps Latin-1 or GBK.
    Unknown,
}

impl Encoding {
    /// What the mark at the beginning says.
    pub(crate) fn by_mark(bytes: &[u8]) -> Option<Self> {
        [Self::Utf8Bom, Self::Utf16Le, Self::Utf16Be].into_iter().find(|e| bytes.starts_with(e.mark()))
    }

    /// The bytes before the text. They are no part of its first line.
    pub(crate) fn mark(self) -> &'static [u8] {
        match self {
            Self::Utf8 | Self::Unknown => b"",
            Self::Utf8Bom => b"\xef\xbb\xbf",
            Self::Utf16Le => b"\xff\xfe",
            Self::Utf16Be => b"\xfe\xff",
        }
    }

    /// Its name in results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "utf-8",
            Self::Utf8Bom => "utf-8-bom",
            Self::Utf16Le => "utf-16le",
            Self::Utf16Be => "utf-16be",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::Utf16Le | Self::Utf16Be)
    }
}

/// Whether bytes without a mark are no text.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, bytes).is_some()
}

/// Why a file cannot be edited as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecodable {
    Binary,
    /// Its mark says UTF-16, but it would not come back the same.
    BrokenUtf16,
}

/// The text of a file: UTF-8, or the file's own bytes where its encoding is unknown.
#[derive(Clone, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) body: Cow<'a, [u8]>,
    pub(crate) encoding: Encoding,
}

impl<'a> Text<'a> {
    pub(crate) fn decode(file: &'a [u8]) -> Result<Self, Undecodable> {
        let marked = Encoding::by_mark(file);
        let mark = marked.map_or(0, |e| e.mark().len());
        let rest = file.get(mark..).unwrap_or_default();
        if let Some(encoding) = marked.filter(|e| e.is_wide()) {
            let body = decode_wide(rest, encoding).ok_or(Undecodable::BrokenUtf16)?;
            return Ok(Self { body: Cow::Owned(body.into_bytes()), encoding });
        }
        if is_binary(rest) {
            return Err(Undecodable::Binary);
        }
        let encoding = match std::str::from_utf8(rest) {
            Ok(_) => marked.unwrap_or(Encoding::Utf8),
            // A mark before bytes that are not UTF-8 is content like the rest.
            Err(_) => return Ok(Self { body: Cow::Borrowed(file), encoding: Encoding::Unknown }),
        };
        Ok(Self { body: Cow::Borrowed(rest), encoding })
    }

    /// The bytes of a file in this encoding whose text is `body`.
    pub(crate) fn encode(&self, body: Vec<u8>) -> Vec<u8> {
        encode(self.encoding, body)
    }

    /// The first character of `new` that a file in this encoding cannot take: where the encoding is unknown, anything
    /// but ASCII would be put there in another one. What `quoted` holds is there already.
    pub(crate) fn refuses(&self, new: &str, quoted: &str) -> Option<char> {
        if self.encoding != Encoding::Unknown {
            return None;
        }
        new.chars().find(|c| !c.is_ascii() && !quoted.contains(*c))
    }
}

pub(crate) fn encode(encoding: Encoding, body: Vec<u8>) -> Vec<u8> {
    match encoding {
        Encoding::Utf8 | Encoding::Unknown => body,
        Encoding::Utf8Bom => [encoding.mark(), &body].concat(),
        Encoding::Utf16Le | Encoding::Utf16Be => {
            let mut out = Vec::with_capacity(2 + 2 * body.len());
            out.extend_from_slice(encoding.mark());
            for unit in String::from_utf8_lossy(&body).encode_utf16() {
                out.extend(if encoding == Encoding::Utf16Le { unit.to_le_bytes() } else { unit.to_be_bytes() });
            }
            out
        }
    }
}

/// UTF-16 as text; `None` where it would not come back the same.
fn decode_wide(bytes: &[u8], encoding: Encoding) -> Option<String> {
    let (units, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let unit = |pair: &[u8; 2]| {
        if encoding == Encoding::Utf16Le { u16::from_le_bytes(*pair) } else { u16::from_be_bytes(*pair) }
    };
    char::decode_utf16(units.iter().map(unit)).collect::<Result<_, _>>().ok()
}

/// Whether byte `at` of `body` may be the second half of a two-byte character of an East Asian encoding, whose second
/// bytes look like ASCII. The pairs are counted from the beginning of the line.
pub(crate) fn splits_pair(body: &[u8], at: usize) -> bool {
    let before = body.get(..at).unwrap_or_default();
    let start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    let mut open = false;
    for byte in before.get(start..).unwrap_or_default() {
        open = !open && *byte >= 0x80;
    }
    open && body.get(at).is_some_and(|b| (0x40..0x7f).contains(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_decoded_comes_back_the_same(bytes in prop::collection::vec(any::<u8>(), 0..80), mark in 0..4_usize) {
            let marks: [&[u8]; 4] = [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];
            let file = [marks[mark], &bytes].concat();
            match Text::decode(&file) {
                Ok(text) => prop_assert_eq!(text.encode(text.body.to_vec()), file),
                Err(why) => prop_assert!(why == Undecodable::BrokenUtf16 || bytes.contains(&0)),
            }
        }
    }

    #[test]
    fn a_second_half_is_no_place_to_cut() {
        // In GBK 0xB0 0x5C is one character.
        assert!(splits_pair(b"x \xb0\x5cn", 3));
        assert!(!splits_pair(b"x \xb0\xa1\x5cn", 4));
        assert!(!splits_pair(b"\xb0\n\x5c", 2));
    }
}
