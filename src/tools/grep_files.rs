//! `grep_files`: a search in the files that a walk finds, in path order. Once the first `max_results` matches in that
//! order are known, the work stops, not only the output.

use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use regex_syntax::hir::{Hir, HirKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BuiltIn, only};
use crate::context::CallContext;
use crate::error::{Code, ToolError};
use crate::output::bound::{cut, cut_word};
use crate::output::glob::Globs;
use crate::permission::Capability;
use crate::registry::Output;
use crate::result::{Content, Data};
use crate::sandbox::walk::{Caps, Found, Hidden, Skipped, WalkOptions, Walked, walk};
use crate::sandbox::{Access, Gate, Kind, OpenFile, SandboxPath};

/// The longest pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 4096;
/// The memory of a compiled pattern, and of its search per thread, in bytes.
const MAX_PROGRAM_BYTES: usize = 10 << 20;
const MAX_CACHE_BYTES: usize = 8 << 20;
/// How far into a line is searched in a file that is not read whole, in bytes.
const MAX_SEARCHED_LINE: usize = 1 << 20;
/// The weight of a pattern up to which files are read whole, and what is searched in one go with a heavier one, in bytes
/// times weight: the engine looks at neither deadline nor cancellation.
const LIGHT: usize = 64;
const MAX_STEPS: usize = 32 << 20;
/// The largest file that is read whole to be searched, in bytes.
const MAX_WHOLE: u64 = 1 << 20;
/// The most lines around a match.
const MAX_CONTEXT: u64 = 20;
pub(super) struct GrepFiles;

/// What `grep_files` takes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The regular expression, matched within a line.
    pattern: String,
    /// The folder or file to search. Default: the workspace.
    path: Option<String>,
    /// A glob that the files must match; without `/` it is matched against the last component.
    include: Option<String>,
    /// Take the pattern as plain text. Default false.
    literal: Option<bool>,
    /// Ignore upper and lower case. Default false.
    ignore_case: Option<bool>,
    /// How many lines to show before and after each match, at most 20. Default 0.
    #[schemars(range(max = 20))]
    context: Option<u64>,
    /// What to give. Default content.
    output: Option<Mode>,
    /// Search names that begin with a dot too. Default false.
    hidden: Option<bool>,
    /// Search what ignore files name too. Default false.
    ignored: Option<bool>,
}

/// What a search gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// The matching lines.
    #[default]
    Content,
    /// The files that match.
    Files,
    /// How many lines match in each file.
    Count,
}

#[derive(Serialize)]
struct GrepData {
    matches: Vec<Hit>,
    /// How many lines match; a lower bound where `truncated`.
    count: u64,
    files: FilesData,
    truncated: bool,
    skipped: Skipped,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FilesData {
    Number(u64),
    Names(Vec<String>),
}

#[derive(Clone, Serialize)]
struct Hit {
    path: String,
    line: u64,
    column: u64,
    text: String,
    truncated: bool,
}

/// What one file gave.
struct FileHits {
    path: SandboxPath,
    rows: Vec<Row>,
    count: u64,
    binary_at: Option<u64>,
    /// Lines that were too long to be searched to their end.
    cut_lines: u64,
}

enum Row {
    Match { line: u64, column: u64, text: String, truncated: bool },
    Context { line: u64, text: String },
    Break,
}

impl BuiltIn for GrepFiles {
    type Args = Args;
    const NAME: &'static str = "grep_files";
    const TEXT: &'static str = include_str!("grep_files.md");
    const CAPABILITY: Option<Capability> = Some(Capability::FilesystemRead);

    fn targets(args: &Args) -> Result<Vec<(String, Access)>, ToolError> {
        Ok(vec![(args.path.clone().unwrap_or_else(|| ".".to_owned()), Access::List)])
    }

    fn execute(args: Args, paths: Vec<SandboxPath>, call: &CallContext) -> Result<Output, ToolError> {
        let path = only(paths)?;
        let matcher = compile(&args)?;
        let include = args.include.as_deref().map(|text| Globs::compile("include", text)).transpose()?;
        if args.context.is_some_and(|context| context > MAX_CONTEXT) {
            return Err(ToolError::new(Code::InvalidArgs, format!("`context` is over {MAX_CONTEXT}")));
        }
        let options = Options {
            mode: args.output.unwrap_or_default(),
            context: usize::try_from(args.context.unwrap_or(0)).unwrap_or(0),
            cap: call.limits().max_results,
            line_bytes: call.limits().max_line_bytes,
        };
        let search = Search { matcher: &matcher, reach: reach(&args), options, call };
        let limits = call.limits();
        let walk_options = WalkOptions {
            hidden: Hidden::shown(args.hidden.unwrap_or(false)),
            ignored: args.ignored.unwrap_or(false),
            depth: usize::MAX,
            caps: Caps { entries: limits.max_scan_files, bytes: limits.max_scan_bytes, weight: options.cap },
            access: Access::Read,
        };
        // The folder that was opened is not held while the walk opens its own.
        let walked = match call.sandbox().open_dir(&path, call).map(|(_, real)| real) {
            Ok(real) => {
                let visit = |worker: &mut Worker, found: Found<'_>, walked: &mut Walked<FileHits>| {
                    let wanted = || include.as_ref().is_none_or(|glob| glob.matches(found.path, &real));
                    match found.kind {
                        Kind::File if wanted() => search.found(worker, found, walked)?,
                        Kind::File | Kind::Directory => {}
                        Kind::Link => walked.skipped.add("links", 1),
                        _ => walked.skipped.add("special", 1),
                    }
                    Ok(())
                };
                walk(call.sandbox(), call, &real, &walk_options, || search.worker(), visit)?
            }
            Err(error) if error.code == Code::NotADirectory => search.named(&path)?,
            Err(error) => return Err(error),
        };
        Ok(present(walked, &args, &options, call))
    }
}

#[derive(Clone, Copy)]
struct Options {
    mode: Mode,
    context: usize,
    cap: usize,
    line_bytes: usize,
}

/// The pattern, compiled. Its time is linear in the text, its memory bounded.
fn compile(args: &Args) -> Result<RegexMatcher, ToolError> {
    let pattern = args.pattern.as_str();
    if pattern.is_empty() || pattern.contains('\0') {
        return Err(ToolError::new(Code::InvalidArgs, "`pattern` is empty or holds a NUL character")
            .hint("Send what to search for; to list files use list_files."));
    }
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(ToolError::new(Code::InvalidPattern, format!("`pattern` is over {MAX_PATTERN_BYTES} bytes"))
            .hint("Send a shorter one, or search several times."));
    }
    let literal = args.literal.unwrap_or(false);
    if literal && pattern.contains('\n') {
        return Err(ToolError::new(
            Code::InvalidPattern,
            "`pattern` holds a line break, and matching is within a line",
        )
        .hint("Search for one of its lines."));
    }
    RegexMatcherBuilder::new()
        .fixed_strings(literal)
        .case_insensitive(args.ignore_case.unwrap_or(false))
        // Of a whole text `^` and `$` mean each line's; the engine then need not take the lines one by one.
        .multi_line(true)
        .line_terminator(Some(b'\n'))
        .size_limit(MAX_PROGRAM_BYTES)
        .dfa_size_limit(MAX_CACHE_BYTES)
        .build(pattern)
        .map_err(|error| {
            ToolError::new(
                Code::InvalidPattern,
                format!("`pattern` is not a regular expression that can be searched: {}", explain(pattern, &error)),
            )
            .hint("Look-around and back-references are not supported; pass literal=true to search for plain text.")
        })
}

/// How much is searched in one go, and of a line at all, in bytes: less with a pattern whose every byte costs more.
fn reach(args: &Args) -> usize {
    if args.literal.unwrap_or(false) {
        return MAX_SEARCHED_LINE;
    }
    let parsed = regex_syntax::ParserBuilder::new().utf8(false).build().parse(&args.pattern);
    match parsed.map_or(1, |hir| weight(&hir)) {
        ..=LIGHT => MAX_SEARCHED_LINE,
        weight => (MAX_STEPS / weight).clamp(1024, MAX_SEARCHED_LINE),
    }
}

/// About how many places of the pattern a search can be in at once.
fn weight(hir: &Hir) -> usize {
    match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) | HirKind::Look(_) => 1,
        HirKind::Class(class) => class.maximum_len().unwrap_or(1),
        HirKind::Repetition(repeated) => {
            let times = repeated.max.unwrap_or(repeated.min).max(1);
            weight(&repeated.sub).saturating_mul(usize::try_from(times).unwrap_or(usize::MAX))
        }
        HirKind::Capture(group) => weight(&group.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().map(weight).fold(0, usize::saturating_add),
    }
}

/// What is wrong with a pattern that does not compile, and where.
fn explain(pattern: &str, error: &grep_regex::Error) -> String {
    let at = |span: &regex_syntax::ast::Span| format!(" at offset {}", span.start.offset);
    match regex_syntax::Parser::new().parse(pattern) {
        Err(regex_syntax::Error::Parse(error)) => format!("{}{}", error.kind(), at(error.span())),
        Err(regex_syntax::Error::Translate(error)) => format!("{}{}", error.kind(), at(error.span())),
        // It is well-formed, but too large, or it matches a line break.
        _ => error.to_string(),
    }
}

struct Search<'a> {
    matcher: &'a RegexMatcher,
    /// How much is searched in one go, in bytes.
    reach: usize,
    options: Options,
    call: &'a CallContext,
}

impl Search<'_> {
    /// Searches a file that a walk found.
    fn found(&self, worker: &mut Worker, found: Found<'_>, walked: &mut Walked<FileHits>) -> Result<(), ToolError> {
        match self.call.sandbox().open_found(found) {
            Ok(file) => self.open(worker, &file, found.over, walked),
            Err(reason) => {
                walked.skipped.add(reason, 1);
                Ok(())
            }
        }
    }

    /// Searches a file that was named.
    fn named(&self, path: &SandboxPath) -> Result<Walked<FileHits>, ToolError> {
        self.call.authorise(path, Access::Read)?;
        let file = self.call.sandbox().open_file(path, self.call)?;
        let mut walked = Walked::default();
        self.open(&mut self.worker(), &file, &AtomicBool::new(false), &mut walked)?;
        Ok(walked)
    }

    /// A file with matches is kept; one that turned out binary before any is counted.
    fn open(
        &self,
        worker: &mut Worker,
        file: &OpenFile,
        over: &AtomicBool,
        walked: &mut Walked<FileHits>,
    ) -> Result<(), ToolError> {
        walked.bytes += file.size;
        match self.one(worker, file, over) {
            Ok(hits) => {
                walked.skipped.add("line_ends_not_searched", hits.cut_lines);
                if hits.count > 0 {
                    walked.weight += self.options.rows_of(&hits);
                    walked.items.push(hits);
                } else if hits.binary_at.is_some() {
                    walked.skipped.add("binary", 1);
                }
                Ok(())
            }
            Err(Failure::Call(error)) => Err(error),
            Err(Failure::File(reason)) => {
                walked.skipped.add(reason, 1);
                Ok(())
            }
        }
    }

    fn worker(&self) -> Worker {
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::none())
            .before_context(self.options.context)
            .after_context(self.options.context)
            .heap_limit(Some(4 * MAX_SEARCHED_LINE))
            .build();
        Worker { searcher, buffer: Vec::new() }
    }

    /// Searches one file. A NUL byte ends the text of a file, whichever way it is read.
    fn one(&self, worker: &mut Worker, file: &OpenFile, over: &AtomicBool) -> Result<FileHits, Failure> {
        let mut sink = Hits {
            search: self,
            found: FileHits { path: file.path.clone(), rows: Vec::new(), count: 0, binary_at: None, cut_lines: 0 },
            kept: 0,
        };
        let search = self;
        let mut reader =
            Checked { file, search, over, line: 0, dropping: false, cut_lines: 0, passed: 0, wide: false, nul: None };
        let Worker { searcher, buffer } = worker;
        let done = if file.size <= MAX_WHOLE && self.reach == MAX_SEARCHED_LINE {
            self.call.poll().map_err(Failure::Call)?;
            file.read_into(buffer, MAX_WHOLE).map_err(|_| Failure::File("unreadable"))?;
            let wide = buffer.starts_with(b"\xff\xfe") || buffer.starts_with(b"\xfe\xff");
            let nul = if wide { None } else { memchr::memchr(0, buffer) };
            let text = buffer.get(..nul.unwrap_or(buffer.len())).unwrap_or_default();
            reader.nul = nul.map(|at| at as u64);
            searcher.search_slice(self.matcher, text, &mut sink)
        } else {
            searcher.search_reader(self.matcher, &mut reader, &mut sink)
        };
        (sink.found.cut_lines, sink.found.binary_at) = (reader.cut_lines, reader.nul);
        match done {
            Ok(()) => Ok(sink.found),
            Err(error) => match error.get_ref().and_then(|e| e.downcast_ref::<ToolError>()) {
                Some(error) => Err(Failure::Call(error.clone())),
                None => Err(Failure::File("unreadable")),
            },
        }
    }
}

/// What one thread keeps from file to file.
struct Worker {
    searcher: Searcher,
    buffer: Vec<u8>,
}

enum Failure {
    /// The call is over: cancelled, or out of time.
    Call(ToolError),
    /// The file is passed over.
    File(&'static str),
}

impl Options {
    /// How much of the result a file takes up.
    fn rows_of(&self, file: &FileHits) -> usize {
        match self.mode {
            Mode::Content => usize::try_from(file.count).unwrap_or(usize::MAX),
            Mode::Files | Mode::Count => 1,
        }
    }
}

/// A file read in parts, with the call's deadline and cancellation checked at each. Of an over-long line only the
/// beginning is passed on, so that memory stays bounded and line numbers right.
struct Checked<'a> {
    file: &'a OpenFile,
    search: &'a Search<'a>,
    /// Set once the search of this file is for nothing.
    over: &'a AtomicBool,
    /// How long the last line is so far.
    line: usize,
    dropping: bool,
    cut_lines: u64,
    /// How many bytes were read.
    passed: u64,
    /// UTF-16, where NUL bytes are text.
    wide: bool,
    /// Where the first NUL byte is: the text ends there.
    nul: Option<u64>,
}

impl io::Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.search.call.poll().map_err(io::Error::other)?;
            if self.nul.is_some() || self.over.load(Ordering::Relaxed) {
                return Ok(0);
            }
            let room = buffer.len().min(self.search.reach);
            let read = self.file.read(buffer.get_mut(..room).unwrap_or_default());
            let mut count = read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.message))?;
            let mut bytes = buffer.get(..count).unwrap_or_default();
            if self.passed == 0 {
                self.wide = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
            }
            if let Some(at) = memchr::memchr(0, bytes).filter(|_| !self.wide) {
                self.nul = Some(self.passed + at as u64);
                count = at;
                bytes = bytes.get(..at).unwrap_or_default();
            }
            self.passed += count as u64;
            let mut from = 0;
            if self.dropping && count > 0 {
                let Some(at) = memchr::memchr(b'\n', bytes) else { continue };
                (from, self.dropping) = (at, false);
            }
            match memchr::memrchr(b'\n', bytes) {
                Some(at) => self.line = count - at - 1,
                None => self.line += count,
            }
            if self.line > self.search.reach {
                self.dropping = true;
                self.cut_lines += 1;
                self.line = 0;
            }
            buffer.copy_within(from..count, 0);
            return Ok(count - from);
        }
    }
}

struct Hits<'a> {
    search: &'a Search<'a>,
    found: FileHits,
    /// Matches kept as rows.
    kept: usize,
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> io::Result<bool> {
        self.found.count += 1;
        let options = &self.search.options;
        if options.mode != Mode::Content {
            return Ok(options.mode == Mode::Count);
        }
        // With the line's end, `$` would match nowhere in it.
        let bytes = matched.bytes().strip_suffix(b"\n").unwrap_or(matched.bytes());
        let at = self.search.matcher.find(bytes).ok().flatten();
        let (start, end) = at.map_or((0, 0), |m| (m.start(), m.end()));
        let (text, truncated) = snippet(bytes, start, end, options.line_bytes);
        let before = bytes.get(..start).unwrap_or_default();
        let column = String::from_utf8_lossy(before).chars().count() as u64 + 1;
        self.found.rows.push(Row::Match { line: matched.line_number().unwrap_or(0), column, text, truncated });
        self.kept += 1;
        // One more than the cap tells that there are more.
        Ok(self.kept <= options.cap)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> io::Result<bool> {
        if self.search.options.mode == Mode::Content {
            let (text, _) = snippet(line.bytes(), 0, 0, self.search.options.line_bytes);
            self.found.rows.push(Row::Context { line: line.line_number().unwrap_or(0), text });
        }
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        if self.search.options.mode == Mode::Content {
            self.found.rows.push(Row::Break);
        }
        Ok(true)
    }
}

/// A line without its end, as text; where it is too long, the part around the match.
fn snippet(line: &[u8], start: usize, end: usize, max: usize) -> (String, bool) {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= max {
        return (String::from_utf8_lossy(line).into_owned(), false);
    }
    let end = end.min(line.len()).min(start + max);
    let room = max.saturating_sub(end - start);
    let from = start.saturating_sub(room / 2).min(line.len().saturating_sub(max));
    let part = line.get(from..(from + max).min(line.len())).unwrap_or_default();
    // Characters that the window cuts go; bytes that were never text stay visible.
    let lead = part.iter().take(3).take_while(|b| **b & 0xc0 == 0x80).count();
    let part = part.get(if from > 0 { lead } else { 0 }..).unwrap_or_default();
    let valid = match std::str::from_utf8(part) {
        Err(e) if e.error_len().is_none() => part.get(..e.valid_up_to()).unwrap_or_default(),
        _ => part,
    };
    let text = String::from_utf8_lossy(valid);
    (
        format!(
            "{}{}{}",
            if from > 0 { "…" } else { "" },
            cut(&text, max),
            if from + max < line.len() { "…" } else { "" }
        ),
        true,
    )
}

fn present(walked: Walked<FileHits>, args: &Args, options: &Options, call: &CallContext) -> Output {
    let limits = call.limits();
    let mut truncated = walked.capped;
    let (mut text, mut matches, mut names) = (String::new(), Vec::new(), Vec::new());
    let (mut count, mut rows, mut files, mut data_bytes) = (0, 0, 0_u64, 0);
    let mut notices = Vec::new();
    'files: for file in walked.items {
        if rows >= options.cap {
            truncated = true;
            break;
        }
        files += 1;
        let path = file.path.row();
        if let Some(at) = file.binary_at {
            notices.push(format!("[{path}: binary from byte {at} on; what comes after is not searched.]"));
        }
        match options.mode {
            Mode::Files => {
                count += file.count;
                rows += 1;
                let _ = writeln!(text, "{path}");
                names.push(file.path.to_string());
            }
            Mode::Count => {
                count += file.count;
                rows += 1;
                let _ = writeln!(text, "{path}:{}", file.count);
            }
            Mode::Content => {
                for row in file.rows {
                    match row {
                        Row::Match { line, column, text: found, truncated: shortened } => {
                            if rows >= options.cap {
                                truncated = true;
                                break 'files;
                            }
                            let _ = writeln!(text, "{path}:{line}:{found}");
                            count += 1;
                            rows += 1;
                            data_bytes += found.len() + path.len() + 80;
                            if data_bytes <= limits.max_output_bytes {
                                let path = file.path.to_string();
                                matches.push(Hit { path, line, column, text: found, truncated: shortened });
                            } else {
                                truncated = true;
                            }
                        }
                        Row::Context { line, text: found } => {
                            let _ = writeln!(text, "{path}-{line}-{found}");
                        }
                        Row::Break => text.push_str("--\n"),
                    }
                }
            }
        }
    }
    let more = truncated && (walked.capped || rows >= options.cap);
    if more {
        notices.push(format!(
            "[Only the first {rows} results are given; there are more. Narrow the search with path or include.]"
        ));
    }
    if count == 0 {
        notices.push("[No matches.]".to_owned());
    }
    let left_out = walked.skipped.sentence();
    if !left_out.is_empty() {
        notices.push(format!("[{left_out}]"));
    }
    let at_least = if more { "at least " } else { "" };
    let summary = format!("searched for `{}`: {at_least}{count} matches in {files} files", cut_word(&args.pattern, 60));
    call.notes().bytes_in = walked.bytes;
    let files = if options.mode == Mode::Files { FilesData::Names(names) } else { FilesData::Number(files) };
    let data = GrepData { matches, count, files, truncated, skipped: walked.skipped };
    Output {
        summary,
        data: Some(Data::new(data)),
        content: vec![Content::text(text)],
        notices,
        truncated,
        ..Output::default()
    }
}
