//! `audit = "chained"`: each line carries a MAC over itself, its place and the MAC of the line before, under a key that
//! only the host has. Without a key the MACs show accidents only: whoever can write the logs can make them anew.

use std::borrow::Cow;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac as _};
use sha2::Sha256;

use super::jsonl::Sink;

/// How the member looks that a chained line ends with.
const MEMBER: &str = ",\"mac\":\"";
const HEX_BYTES: usize = 64;

/// The MAC of a line, or what stands for it before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mac([u8; 32]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Mac {
    fn push_hex(self, out: &mut String) {
        for half in self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
            out.extend(char::from_digit(half.into(), 16));
        }
    }

    /// Reads it as [`Self::push_hex`] writes it, and in no other form.
    pub(crate) fn from_hex(hex: &[u8]) -> Option<Self> {
        let half = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut mac = Self::default();
        if hex.len() != HEX_BYTES {
            return None;
        }
        for (byte, pair) in mac.0.iter_mut().zip(hex.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = half(*high)? << 4 | half(*low)?;
        }
        Some(mac)
    }
}

/// Makes the MACs of a run's lines.
#[derive(Clone)]
pub(crate) struct Chain(Hmac<Sha256>);

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chain").finish_non_exhaustive()
    }
}

impl Chain {
    /// A chain under the host's key; an empty one is everybody's.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        Hmac::new_from_slice(key).ok().map(Self)
    }

    /// What stands before the first line of a log: lines cannot be moved to another run or log.
    pub(crate) fn start(&self, run_id: &str, sink: Sink) -> Mac {
        let parts = ["kgent_tools log 1", run_id, sink.path()].map(|part| [part.as_bytes(), b"\0"].concat());
        Mac(self.0.clone().chain_update(parts.concat()).finalize().into_bytes().into())
    }

    /// The MAC of the line that begins at byte `at` after one with the MAC `before`; `line` is without its own.
    pub(crate) fn mac(&self, before: &Mac, at: u64, line: &[u8]) -> Mac {
        let mac = self.0.clone().chain_update(before.0).chain_update(at.to_le_bytes()).chain_update(line);
        Mac(mac.finalize().into_bytes().into())
    }

    /// Gives the line that begins at `from` in `out`, a JSON object, its MAC as the last member.
    pub(crate) fn seal(&self, before: &Mac, at: u64, out: &mut String, from: usize) -> Mac {
        let mac = self.mac(before, at, out.as_bytes().get(from..).unwrap_or_default());
        out.pop();
        out.push_str(MEMBER);
        mac.push_hex(out);
        out.push_str("\"}");
        mac
    }

    /// A line without its newline taken apart: as it was before it was sealed, and its MAC.
    pub(crate) fn split(line: &[u8]) -> Option<(Cow<'_, [u8]>, Mac)> {
        let (rest, end) = line.split_at_checked(line.len().checked_sub(HEX_BYTES + 2)?)?;
        let mac = Mac::from_hex(end.strip_suffix(b"\"}")?)?;
        let body = rest.strip_suffix(MEMBER.as_bytes())?;
        Some((Cow::Owned([body, b"}"].concat()), mac))
    }
}
