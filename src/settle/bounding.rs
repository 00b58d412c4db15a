//! What the model sees of an output that is too long.

use serde_json::json;

use crate::context::CallContext;
use crate::error::{Code, ToolError};
use crate::output::bound;
use crate::registry::Output;
use crate::result::{Content, ToolResult, one_line};

/// The largest file that a model is given, in bytes.
const MAX_INLINE_MEDIA_BYTES: usize = 5 << 20;

/// 8 bound: cuts what the model sees; the whole goes to an artifact.
pub(super) fn bounded(output: Output, call: &CallContext) -> Result<ToolResult, ToolError> {
    for part in &output.content {
        let Content::File { media_type, data } = part else { continue };
        if data.len() > MAX_INLINE_MEDIA_BYTES && !output.for_host {
            return Err(ToolError::new(
                Code::TooLarge,
                format!(
                    "the tool gave a {} of {} bytes; a file for the model is at most {MAX_INLINE_MEDIA_BYTES} bytes",
                    one_line(media_type),
                    data.len()
                ),
            )
            .hint("Ask for a smaller or a scaled version.")
            .details(json!({"done": true, "bytes": data.len()})));
        }
    }
    let limits = call.limits();
    let (max_lines, max_bytes) = (limits.max_output_lines, limits.max_output_bytes);
    let mut content = output.content;
    let texts = content.iter().filter_map(|part| match part {
        Content::Text(text) => Some(text.as_str()),
        Content::File { .. } => None,
    });
    let notices = bound::notices(output.notices, max_bytes);
    let max_bytes = max_bytes - notices.iter().map(String::len).sum::<usize>();
    let max_lines = max_lines.saturating_sub(notices.len()).max(1);
    let bytes: usize = texts.clone().map(str::len).sum();
    let mut truncated = output.truncated;
    let lines = || texts.clone().map(|t| memchr::memchr_iter(b'\n', t.as_bytes()).count()).sum::<usize>();
    if bytes > max_bytes || lines() > max_lines {
        let whole = texts.collect::<Vec<_>>().join("\n");
        if let Some(cut) = bound::preview(&whole, max_lines, max_bytes) {
            truncated = true;
            let stored = call.store(&format!("{}.txt", call.id()), whole.as_bytes());
            let notice = match stored {
                Ok(path) => format!(
                    "[{} lines and {} bytes are left out here; the whole output is in {path}. \
                     Read on with read_file(path=\"{path}\", offset={}).]",
                    cut.omitted_lines,
                    cut.omitted_bytes,
                    cut.head.matches('\n').count() + 1
                ),
                Err(_) => format!(
                    "[{} lines and {} bytes are left out here, and the whole output could not be stored. Ask for less.]",
                    cut.omitted_lines, cut.omitted_bytes
                ),
            };
            let parts = [cut.head, &notice, cut.tail].map(Content::text);
            content =
                parts.into_iter().chain(content.into_iter().filter(|c| matches!(c, Content::File { .. }))).collect();
        }
    }
    if !notices.is_empty() {
        content.retain(|part| !matches!(part, Content::Text(text) if text.is_empty()));
    }
    content.extend(notices.into_iter().map(Content::text));
    let mut notes = call.notes();
    notes.truncated |= truncated;
    let artifacts = output.artifacts.into_iter().chain(notes.artifacts.iter().cloned()).collect();
    Ok(ToolResult {
        ok: true,
        summary: one_line(&call.call().run.redactor.text(&output.summary)),
        data: output.data,
        artifacts,
        error: None,
        content,
    })
}
