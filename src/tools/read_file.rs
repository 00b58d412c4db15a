//! `read_file`: a window of a file as numbered lines. The window is chosen so that its text fits: a read never spills.

use std::fmt::Write as _;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::context::seen::Sight;
use crate::edit::encoding::{Encoding, is_binary};
use crate::error::{Code, ToolError};
use crate::output::bound::cut;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::{Access, Gate, OpenFile, SandboxPath, content_hash};

/// A file up to this size is read whole: it gets a hash and a line count, in bytes.
const WHOLE: u64 = 1 << 20;
/// The largest image or PDF that is given as a file, in bytes.
const MAX_MEDIA_BYTES: u64 = 5 << 20;
/// The room that notices take, in bytes and lines.
const NOTICE_BYTES: usize = 512;
const NOTICE_LINES: usize = 2;

pub(super) struct ReadFile;

/// What `read_file` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file, relative to the workspace or beginning with a mount's name.
    path: String,
    /// The first line to read, 1-based. Default 1.
    #[schemars(range(min = 1))]
    offset: Option<u64>,
    /// How many lines to read at most. Default and maximum: what fits 2,000 lines and 50 KiB.
    #[schemars(range(min = 1))]
    limit: Option<u64>,
}

#[derive(Serialize)]
struct ReadData {
    path: String,
    content: Arc<String>,
    offset: u64,
    lines: u64,
    total_lines: Option<u64>,
    truncated: bool,
    next_offset: Option<u64>,
    hash: Hash,
    encoding: &'static str,
    bytes: u64,
}

/// The hash of the whole file.
#[derive(Clone)]
enum Hash {
    /// Not known: the file is large and was not read whole.
    Unknown,
    Known(String),
    /// That of this text, the file as it is; computed when somebody asks.
    Of(Arc<String>),
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unknown => serializer.serialize_none(),
            Self::Known(hash) => serializer.serialize_str(hash),
            Self::Of(text) => serializer.serialize_str(&content_hash(text.as_bytes())),
        }
    }
}

/// A file's text.
struct Decoded {
    text: Arc<String>,
    encoding: &'static str,
    hash: Hash,
}

impl Decoded {
    fn new(text: String, encoding: &'static str, hash: Hash) -> Self {
        Self { text: Arc::new(text), encoding, hash }
    }
}

impl BuiltIn for ReadFile {
    type Args = Args;
    const NAME: &'static str = "read_file";
    const TEXT: &'static str = include_str!("read_file.md");
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone(), Access::Read)])
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        for (name, value) in [("offset", args.offset), ("limit", args.limit)] {
            if value == Some(0) {
                return Err(ToolError::new(Code::InvalidArgs, format!("`{name}` is 0")).hint("Lines count from 1."));
            }
        }
        let (offset, limit) = (args.offset.unwrap_or(1), args.limit.unwrap_or(u64::MAX));
        let file = call.sandbox().open_file(&path, call).map_err(|error| call.sandbox().suggest(error, &path, call))?;
        if file.size > WHOLE {
            let output = large(&path, &file, offset, limit, call)?;
            // The rest of it was not seen: only its state tells whether it changed.
            call.saw(&file.path, Some(Sight::read(file.version, call.sandbox().keeps_times(&file), || None)));
            return Ok(output);
        }
        let bytes = file.read_all(WHOLE.max(call.limits().max_file_bytes))?;
        call.notes().bytes_in = bytes.len() as u64;
        if let Some(media_type) = media_type(&bytes) {
            return Ok(media(&path, media_type, bytes));
        }
        let size = bytes.len() as u64;
        let sight = Sight::read(file.version, call.sandbox().keeps_times(&file), || Some(blake3::hash(&bytes)));
        let text = decode(bytes).map_err(|bytes| binary(&path, &bytes, size))?;
        let facts = Facts { offset, limit, hash: text.hash, encoding: text.encoding, size };
        let from = nth_line(text.text.as_bytes(), offset);
        if offset > 1 && from == text.text.len() {
            return Err(past_end(&path, offset, count_lines(text.text.as_bytes())));
        }
        call.saw(&file.path, Some(sight));
        Ok(window(&path, &text.text, from, true, &facts, call))
    }
}

/// What is known of the file whose window is shown.
struct Facts {
    offset: u64,
    limit: u64,
    hash: Hash,
    encoding: &'static str,
    size: u64,
}

/// Numbers the lines of `text` from byte `from` on, which is where line `offset` begins, for as long as they fit.
/// `whole` says whether `text` is the whole file.
fn window(
    path: &SandboxPath,
    text: &Arc<String>,
    from: usize,
    whole: bool,
    facts: &Facts,
    call: &CallContext,
) -> Output {
    let limits = call.limits();
    let rest = text.get(from..).unwrap_or_default();
    let room = limits.max_output_bytes.min(usize::try_from(limits.max_file_bytes).unwrap_or(usize::MAX));
    let shown = path.to_string();
    let room = room.saturating_sub((NOTICE_BYTES + 2 * shown.len()).min(room / 2));
    let most = limits.max_output_lines.saturating_sub(NOTICE_LINES).max(1);
    let most = facts.limit.min(most as u64);
    let mut numbered = Vec::with_capacity((rest.len() + rest.len() / 4 + 64).min(room + 64));
    let (mut lines, mut taken, mut cut_line) = (0_u64, 0, None);
    let mut number = LineNumber::new(facts.offset);
    let mut ends = memchr::memchr_iter(b'\n', rest.as_bytes());
    while lines < most && taken < rest.len() {
        let end = ends.next().map(|at| at + 1);
        let line = rest.get(taken..end.unwrap_or(rest.len())).unwrap_or_default();
        let mut part = if line.len() > limits.max_line_bytes { cut(line, limits.max_line_bytes) } else { line };
        let before = numbered.len();
        number.push(&mut numbered);
        if numbered.len() + part.len() > room {
            if lines > 0 {
                numbered.truncate(before);
                break;
            }
            part = cut(part, room.saturating_sub(numbered.len()));
        }
        numbered.extend_from_slice(part.as_bytes());
        lines += 1;
        taken += line.len();
        if part.len() < line.len() {
            cut_line.get_or_insert((facts.offset + lines - 1, line.len(), end.is_some() || whole));
            if end.is_none() && !whole {
                break;
            }
            if numbered.last() != Some(&b'\n') {
                numbered.push(b'\n');
            }
        }
    }
    let at_end = whole && taken >= rest.len();
    let truncated = !at_end || cut_line.is_some();
    let next_offset = (!at_end).then_some(facts.offset + lines);
    let total_lines = match (at_end, whole) {
        (true, _) => Some(facts.offset - 1 + lines),
        (false, true) => Some(count_lines(text.as_bytes())),
        (false, false) => None,
    };
    let mut notices = Vec::new();
    if facts.size == 0 {
        notices.push(format!("[{shown} is empty.]"));
    }
    if let Some((line, bytes, exact)) = cut_line {
        let more = if exact { "" } else { "more than " };
        notices.push(format!("[Line {line} has {more}{bytes} bytes and is cut. Search it with grep_files.]"));
    }
    if let Some(next) = next_offset {
        let of = total_lines.map(|total| format!(" of {total}")).unwrap_or_default();
        notices.push(format!(
            "[Lines {} to {}{of}. Read on with read_file(path={}, offset={next}).]",
            facts.offset,
            next - 1,
            Value::String(shown.clone())
        ));
    }
    if facts.encoding == "unknown" {
        notices.push("[The file is not valid UTF-8: the bytes that are not are shown as \u{fffd}.]".to_owned());
    }
    let mut summary = String::with_capacity(shown.len() + 40);
    let _ = write!(summary, "read {shown}: {lines} lines from line {}", facts.offset);
    call.notes().truncated = truncated;
    let whole_text = from == 0 && at_end && cut_line.is_none();
    let content = if whole_text { Arc::clone(text) } else { Arc::new(cut(rest, taken.min(room)).to_owned()) };
    let data = ReadData {
        path: shown,
        content,
        offset: facts.offset,
        lines,
        total_lines,
        truncated,
        next_offset,
        hash: facts.hash.clone(),
        encoding: facts.encoding,
        bytes: facts.size,
    };
    Output {
        summary,
        data: Some(Data::new(data)),
        content: vec![Content::text(utf8(numbered).0)],
        notices,
        ..Output::default()
    }
}

/// A line's number, right-aligned in six columns, and a tab. Up to six digits it counts in its text.
struct LineNumber {
    text: [u8; 7],
    next: u64,
}

impl LineNumber {
    const COLUMNS: usize = 6;
    const MAX: u64 = 999_999;

    fn new(first: u64) -> Self {
        let mut text = *b"      \t";
        if first <= Self::MAX {
            let mut buffer = itoa::Buffer::new();
            let digits = buffer.format(first).bytes().rev();
            text.iter_mut().take(Self::COLUMNS).rev().zip(digits).for_each(|(place, digit)| *place = digit);
        }
        Self { text, next: first }
    }

    /// Appends the number and goes on to the next.
    fn push(&mut self, out: &mut Vec<u8>) {
        if self.next > Self::MAX {
            out.extend_from_slice(itoa::Buffer::new().format(self.next).as_bytes());
            out.push(b'\t');
        } else {
            out.extend_from_slice(&self.text);
            for digit in self.text.iter_mut().take(Self::COLUMNS).rev() {
                match *digit {
                    b'9' => *digit = b'0',
                    b' ' => {
                        *digit = b'1';
                        break;
                    }
                    _ => {
                        *digit += 1;
                        break;
                    }
                }
            }
        }
        self.next = self.next.saturating_add(1);
    }
}

/// A file too large to be read whole: constant memory, whatever its size. Only the window and what comes before it are
/// read.
fn large(
    path: &SandboxPath,
    file: &OpenFile,
    offset: u64,
    limit: u64,
    call: &CallContext,
) -> Result<Output, ToolError> {
    let room = call.limits().max_output_bytes.max(64 * 1024) + call.limits().max_line_bytes;
    // A first small part answers for the beginning of a file; then larger ones.
    let mut buffer = vec![0; 8 * 1024];
    let mut kept: Vec<u8> = Vec::new();
    let (mut line, mut read, mut after, mut whole) = (1, 0, 0, false);
    let mut first = true;
    // Lines before the window are passed over; from its first byte on, all is kept until it is surely enough.
    'read: loop {
        call.poll()?;
        if read > 0 {
            buffer.resize(64 * 1024, 0);
        }
        let count = file.read(&mut buffer)?;
        read += count as u64;
        let mut chunk = buffer.get(..count).unwrap_or_default();
        if count == 0 {
            whole = true;
            break;
        }
        if first {
            first = false;
            if media_type(chunk).is_some() && file.size <= MAX_MEDIA_BYTES {
                let mut bytes = chunk.to_vec();
                loop {
                    let count = file.read(&mut buffer)?;
                    if count == 0 || bytes.len() as u64 > MAX_MEDIA_BYTES {
                        break;
                    }
                    bytes.extend_from_slice(buffer.get(..count).unwrap_or_default());
                }
                let media_type = media_type(&bytes).unwrap_or("application/octet-stream");
                return Ok(media(path, media_type, bytes));
            }
            if !chunk.starts_with(b"\xff\xfe")
                && !chunk.starts_with(b"\xfe\xff")
                && is_binary(chunk)
                && offset == 1
                && limit > 1
            {
                return Err(binary(path, chunk, file.size));
            }
            if chunk.starts_with(b"\xff\xfe") || chunk.starts_with(b"\xfe\xff") {
                return Err(ToolError::new(
                    Code::TooLarge,
                    format!("`{path}` is UTF-16 text of {} bytes; over 1 MiB only UTF-8 is read", file.size),
                )
                .hint("Search it with grep_files, which reads UTF-16."));
            }
            chunk = chunk.strip_prefix(b"\xef\xbb\xbf").unwrap_or(chunk);
        }
        while line < offset {
            let Some(at) = memchr::memchr(b'\n', chunk) else { continue 'read };
            chunk = chunk.get(at + 1..).unwrap_or_default();
            line += 1;
        }
        kept.extend_from_slice(chunk);
        // What comes after the last line that was asked for is not looked at.
        let last = usize::try_from(limit - 1).ok().and_then(|last| memchr::memchr_iter(b'\n', &kept).nth(last));
        if let Some(at) = last {
            after = (kept.len() - at - 1) as u64;
            kept.truncate(at + 1);
            break;
        }
        if kept.len() > room {
            break;
        }
    }
    whole |= read - after >= file.size;
    call.notes().bytes_in = read;
    if whole && kept.is_empty() && offset > 1 {
        return Err(past_end(path, offset, line.saturating_sub(1)));
    }
    if is_binary(&kept) {
        let until = memchr::memchr(0, &kept).unwrap_or(0);
        let lines_end = memchr::memrchr(b'\n', kept.get(..until).unwrap_or_default()).map_or(0, |at| at + 1);
        if lines_end == 0
            || memchr::memchr_iter(b'\n', kept.get(..lines_end).unwrap_or_default()).count()
                < usize::try_from(limit).unwrap_or(usize::MAX)
        {
            return Err(binary(path, &kept, file.size));
        }
    }
    if !whole {
        // The buffer may end inside a character.
        kept.truncate(complete(&kept));
    }
    let (text, encoding) = utf8(kept);
    let facts = Facts { offset, limit, hash: Hash::Unknown, encoding, size: file.size };
    Ok(window(path, &Arc::new(text), 0, whole, &facts, call))
}

/// How much of `bytes` ends at a character's border.
fn complete(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => e.valid_up_to(),
        _ => bytes.len(),
    }
}

fn past_end(path: &SandboxPath, offset: u64, total: u64) -> ToolError {
    ToolError::new(Code::InvalidArgs, format!("`offset` is {offset}, but `{path}` has {total} lines"))
        .hint(format!("Send an offset from 1 to {}.", total.max(1)))
}

/// The file as text; its bytes back where it is binary.
fn decode(bytes: Vec<u8>) -> Result<Decoded, Vec<u8>> {
    let marked = Encoding::by_mark(&bytes);
    let wide = match marked {
        Some(Encoding::Utf16Le) => Some(encoding_rs::UTF_16LE),
        Some(Encoding::Utf16Be) => Some(encoding_rs::UTF_16BE),
        _ => None,
    };
    // The mark is no part of the first line: what a model copies from it must match the file's text.
    let rest = bytes.get(marked.map_or(0, |encoding| encoding.mark().len())..).unwrap_or_default();
    if let (Some(encoding), Some(wide)) = (marked, wide) {
        let (text, _) = wide.decode_without_bom_handling(rest);
        return Ok(Decoded::new(text.into_owned(), encoding.name(), Hash::Known(content_hash(&bytes))));
    }
    if is_binary(&bytes) {
        return Err(bytes);
    }
    if let Some(encoding) = marked {
        let (text, found) = utf8(rest.to_vec());
        let name = if found == "utf-8" { encoding.name() } else { found };
        return Ok(Decoded::new(text, name, Hash::Known(content_hash(&bytes))));
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => {
            let text = Arc::new(text);
            Decoded { hash: Hash::Of(Arc::clone(&text)), text, encoding: "utf-8" }
        }
        Err(error) => {
            let hash = Hash::Known(content_hash(error.as_bytes()));
            let (text, encoding) = utf8(error.into_bytes());
            Decoded::new(text, encoding, hash)
        }
    })
}

/// Bytes as text; what is not UTF-8 is replaced, and the encoding called unknown.
fn utf8(bytes: Vec<u8>) -> (String, &'static str) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, "utf-8"),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), "unknown"),
    }
}

fn binary(path: &SandboxPath, bytes: &[u8], size: u64) -> ToolError {
    let start: Vec<String> = bytes.iter().take(16).map(|b| format!("{b:02x}")).collect();
    ToolError::new(Code::Binary, format!("`{path}` is a binary file of {size} bytes that begins {}", start.join(" ")))
        .hint("read_file reads text, images and PDF.")
}

/// The type of an image or PDF, by its first bytes.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    let webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    match bytes {
        _ if bytes.starts_with(b"\x89PNG\r\n\x1a\n") => Some("image/png"),
        _ if bytes.starts_with(b"\xff\xd8\xff") => Some("image/jpeg"),
        _ if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") => Some("image/gif"),
        _ if webp => Some("image/webp"),
        _ if bytes.starts_with(b"%PDF-") => Some("application/pdf"),
        _ => None,
    }
}

fn media(path: &SandboxPath, media_type: &'static str, bytes: Vec<u8>) -> Output {
    let shown = path.to_string();
    let data = ReadData {
        path: shown.clone(),
        content: Arc::default(),
        offset: 1,
        lines: 0,
        total_lines: None,
        truncated: false,
        next_offset: None,
        hash: Hash::Known(content_hash(&bytes)),
        encoding: media_type,
        bytes: bytes.len() as u64,
    };
    Output {
        summary: format!("read {shown}: {media_type}, {} bytes", bytes.len()),
        data: Some(Data::new(data)),
        content: vec![
            Content::text(format!("{shown}: {media_type}, {} bytes", bytes.len())),
            Content::File { media_type: media_type.to_owned(), data: bytes.into() },
        ],
        ..Output::default()
    }
}

/// How many lines there are; a last one without a newline counts.
fn count_lines(bytes: &[u8]) -> u64 {
    let ended = memchr::memchr_iter(b'\n', bytes).count() as u64;
    ended + u64::from(bytes.last().is_some_and(|b| *b != b'\n'))
}

/// Where line `number` begins; the end where there are fewer.
fn nth_line(bytes: &[u8], number: u64) -> usize {
    let Ok(newlines) = usize::try_from(number.saturating_sub(1)) else { return bytes.len() };
    match newlines.checked_sub(1) {
        None => 0,
        Some(index) => memchr::memchr_iter(b'\n', bytes).nth(index).map_or(bytes.len(), |at| at + 1),
    }
}
