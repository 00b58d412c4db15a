//! What the host is asked about a call, and what its grant is held against.

use serde_json::Value;

use crate::context::CallContext;
use crate::error::{Code, ToolError};
use crate::permission::grant::{self, ApprovalRequest, TargetState};
use crate::registry::ToolDefinition;
use crate::sandbox::{Access, SandboxPath};

/// A call as the host would approve it: what it asks for by now, and what the names that it was sent lead to.
#[derive(Debug)]
pub(super) struct Approval {
    pub(super) tool: ToolDefinition,
    pub(super) args: Value,
    pub(super) targets: Vec<(SandboxPath, Access)>,
}

impl Approval {
    /// Goes on where nothing is asked, or the host has approved it; else the host must be asked.
    pub(super) fn settle(&self, call: &CallContext) -> Result<(), ToolError> {
        let grant = call.info().grant.as_ref();
        if grant.is_none() && call.notes().asks.is_empty() {
            return Ok(());
        }
        let request = self.request(call)?;
        if let Some(grant) = grant.filter(|grant| grant.answers(&request))
            && call.approve(grant)?
        {
            return Ok(());
        }
        if request.asks.is_empty() { Ok(()) } else { Err(self.refuse(request, call)) }
    }

    /// The same failure of a call that met something to ask about only while it ran.
    pub(super) fn complete(&self, error: ToolError, call: &CallContext) -> ToolError {
        if error.code != Code::ApprovalRequired || call.notes().asks.is_empty() {
            return error;
        }
        self.request(call).map_or_else(|other| other, |request| self.refuse(request, call))
    }

    fn request(&self, call: &CallContext) -> Result<ApprovalRequest, ToolError> {
        let mut targets = Vec::with_capacity(self.targets.len());
        for (path, access) in &self.targets {
            let real = call.sandbox().follow(path, *access)?;
            if real != *path {
                call.authorise_name(&real, *access)?;
            }
            let shown = real.to_string();
            if targets.iter().any(|target: &TargetState| target.path == shown) {
                continue;
            }
            let state = call.sandbox().state(&real, call.limits().max_file_bytes)?;
            targets.push(TargetState { path: shown, state });
        }
        Ok(ApprovalRequest {
            run_id: call.run_id().to_owned(),
            tool: self.tool.name().unwrap_or_default().to_owned(),
            tool_digest: self.tool.digest(),
            arguments_digest: grant::digest(self.args.clone()),
            asks: call.notes().asks.clone(),
            targets,
            preview: String::new(),
            preview_omitted_bytes: 0,
        })
    }

    fn refuse(&self, mut request: ApprovalRequest, call: &CallContext) -> ToolError {
        let paths: Vec<SandboxPath> = self.targets.iter().map(|(path, _)| path.clone()).collect();
        let preview = self.tool.definition().executor.preview(self.args.clone(), &paths, call);
        request.show(&preview.unwrap_or_else(|| serde_json::to_string_pretty(&self.args).unwrap_or_default()));
        let error = call.approval_required(&request);
        if let Some(call_id) = &call.info().call_id {
            call.call().run.keep_request(call_id, request);
        }
        error
    }
}
