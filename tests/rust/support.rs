//! What the scenarios stand on: a workspace, a tree outside it whose names and contents are canaries, and a run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kgent_tools::config::ToolsConfig;
use kgent_tools::context::{CallInfo, Patient, RunContext, RunOptions};
use kgent_tools::permission::{Layers, Policy};
use kgent_tools::registry::{Services, ToolRegistry, ToolSnapshot};
use kgent_tools::result::{Content, ToolResult};
use kgent_tools::settle::Arguments;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The whole content of every file outside, and part of the names there. No result and no log may hold it.
pub(crate) const CANARY: &str = "TOPSECRET";
/// A pattern that finds the canary without holding it.
pub(crate) const CANARY_PATTERN: &str = "TOP[S]ECRET";
/// The content of the files inside.
pub(crate) const INSIDE: &str = "INSIDE\n";

/// How a fixture differs from the plain one. Paths are relative to its directory.
#[derive(Clone, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) workspace: &'a str,
    pub(crate) runs: &'a str,
    /// Name, directory, writable.
    pub(crate) mounts: &'a [(&'a str, &'a str, bool)],
    pub(crate) config: Value,
    pub(crate) config_files: &'a [&'a str],
    /// Laid in the workspace before the run is made.
    pub(crate) lay: &'a [(&'a str, Thing<'a>)],
    /// Whether all of it lies in memory, where that can be: for what tries names, not the disk.
    pub(crate) in_memory: bool,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            workspace: "ws",
            runs: "runs",
            mounts: &[],
            config: json!({}),
            config_files: &[],
            lay: &[],
            in_memory: false,
        }
    }
}

/// What can lie in a workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Thing<'a> {
    Directory,
    File(&'a str),
    /// A symbolic link; `{ws}`, `{outside}` and `{tmp}` stand for host paths.
    Link(&'a str),
    /// Another name of a file outside.
    Hard(&'a str),
    Fifo,
    Socket,
    /// A device like `/dev/zero`; only root can make one.
    Device,
}

pub(crate) struct Fixture {
    dir: TempDir,
    pub(crate) workspace: PathBuf,
    pub(crate) outside: PathBuf,
    pub(crate) context: RunContext,
    tools: ToolSnapshot,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(&Setup::default())
    }

    pub(crate) fn with(setup: &Setup<'_>) -> Self {
        let memory = Path::new("/dev/shm");
        let place = if setup.in_memory && memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("kgent-").tempdir_in(place).unwrap();
        let (workspace, outside) = (dir.path().join(setup.workspace), dir.path().join("outside"));
        for folder in [workspace.join("in"), outside.join("dir"), dir.path().join("ws-evil")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        for file in [workspace.join("top.txt"), workspace.join("in/a.txt")] {
            std::fs::write(file, INSIDE).unwrap();
        }
        for file in ["outside/secret.txt", "outside/TOPSECRET-name", "outside/dir/secret.txt", "ws-evil/secret.txt"] {
            std::fs::write(dir.path().join(file), CANARY).unwrap();
        }
        for (at, thing) in setup.lay {
            lay(dir.path(), &workspace, OsStr::new(at), *thing).unwrap();
        }
        let options = RunOptions {
            workspace: Some(workspace.clone()),
            mounts: setup.mounts.iter().map(|(name, at, rw)| ((*name).to_owned(), dir.path().join(at), *rw)).collect(),
            config: ToolsConfig::from_value(&setup.config).unwrap(),
            config_files: setup.config_files.iter().map(|at| dir.path().join(at)).collect(),
        };
        let context = RunContext::create(&dir.path().join(setup.runs), Some("r"), options).unwrap();
        let tools = offer(&context);
        Self { dir, workspace, outside, context, tools }
    }

    /// The directory that holds everything of the fixture.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Lays a thing in the workspace.
    pub(crate) fn lay(&self, at: impl AsRef<OsStr>, thing: Thing<'_>) {
        lay(self.path(), &self.workspace, at.as_ref(), thing).unwrap();
    }

    /// `text` with `{ws}`, `{outside}` and `{tmp}` filled in.
    pub(crate) fn fill(&self, text: &str) -> String {
        fill(self.path(), &self.workspace, text)
    }

    pub(crate) fn call(&self, tool: &str, args: Value) -> ToolResult {
        call(&self.tools, None, tool, args)
    }

    /// The same with a caller's id.
    pub(crate) fn call_as(&self, call_id: &str, tool: &str, args: Value) -> ToolResult {
        let info = CallInfo { call_id: Some(call_id.to_owned()), ..CallInfo::default() };
        call(&self.tools, Some(&self.context.for_call(info)), tool, args)
    }

    /// The folder of the run.
    pub(crate) fn run_folder(&self) -> PathBuf {
        self.context.run().runs().join("r")
    }

    /// One of the run's files, as bytes.
    pub(crate) fn log(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.run_folder().join(name)).unwrap()
    }

    /// The objects in one of the run's logs; each line must be one.
    pub(crate) fn log_lines(&self, name: &str) -> Vec<Value> {
        let bytes = self.log(name);
        let lines = bytes.split_inclusive(|b| *b == b'\n');
        lines.map(|line| serde_json::from_slice(line).expect("a log line is one JSON object")).collect()
    }

    /// All that the run has written about its calls.
    pub(crate) fn logs(&self) -> String {
        let files = ["logs/tools.jsonl", "logs/errors.jsonl", "events.jsonl"].map(|name| self.log(name));
        String::from_utf8(files.concat()).expect("logs are UTF-8")
    }
}

/// The tools of a run under the policy that its own configuration gives.
pub(crate) fn offer(context: &RunContext) -> ToolSnapshot {
    let run = context.run();
    let layers =
        Layers { sandbox: run.sandbox().rules(), config: run.options().config.permission_rules(), ..Layers::default() };
    let policy = Arc::new(Policy::merge(layers, run.sandbox().mount_names()).unwrap());
    ToolRegistry::new(context).materialize(&policy, &Services::default()).unwrap()
}

pub(crate) fn call(tools: &ToolSnapshot, context: Option<&RunContext>, tool: &str, args: Value) -> ToolResult {
    tools.call(tool, Arguments::Value(args), context, Arc::new(Patient)).unwrap().result
}

/// `ok`, or the error's code.
pub(crate) fn answer(result: &ToolResult) -> &'static str {
    result.error.as_ref().map_or("ok", |error| error.code.as_str())
}

/// All that a caller can see of a result.
pub(crate) fn visible(result: &ToolResult) -> String {
    let mut text = format!("{}\n{:?}\n{:?}\n", result.summary, result.artifacts, result.error);
    if let Some(data) = &result.data {
        text.push_str(&data.to_value().to_string());
    }
    for part in &result.content {
        match part {
            Content::Text(part) => text.push_str(part),
            Content::File { data, .. } => text.push_str(&String::from_utf8_lossy(data)),
        }
    }
    text
}

fn fill(tmp: &Path, workspace: &Path, text: &str) -> String {
    let shown = |path: &Path| path.to_str().unwrap().to_owned();
    text.replace("{ws}", &shown(workspace))
        .replace("{outside}", &shown(&tmp.join("outside")))
        .replace("{tmp}", &shown(tmp))
}

fn lay(tmp: &Path, workspace: &Path, at: &OsStr, thing: Thing<'_>) -> std::io::Result<()> {
    let path = workspace.join(at);
    std::fs::create_dir_all(path.parent().unwrap())?;
    match thing {
        Thing::Directory => std::fs::create_dir_all(path),
        Thing::File(content) => std::fs::write(path, content),
        Thing::Link(target) => std::os::unix::fs::symlink(fill(tmp, workspace, target), path),
        Thing::Hard(name) => std::fs::hard_link(tmp.join("outside").join(name), path),
        Thing::Fifo => Ok(mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0)?),
        Thing::Socket => UnixListener::bind(path).map(drop),
        Thing::Device => Ok(mknodat(CWD, path, FileType::CharacterDevice, Mode::RWXU, makedev(1, 5))?),
    }
}

/// Whether this user can make a device.
pub(crate) fn can_make_devices() -> bool {
    let dir = tempfile::tempdir().unwrap();
    lay(dir.path(), dir.path(), OsStr::new("device"), Thing::Device).is_ok()
}

/// Every name below `root`, the root included, with all that a tool could have changed of it.
pub(crate) fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in walkdir::WalkDir::new(root) {
        let entry = entry.unwrap();
        let meta = entry.path().symlink_metadata().unwrap();
        let content = if meta.is_file() {
            std::fs::read(entry.path()).unwrap()
        } else if meta.is_symlink() {
            std::fs::read_link(entry.path()).unwrap().as_os_str().as_bytes().to_vec()
        } else {
            Vec::new()
        };
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let state = format!("{:o} {} {} {times:?} {content:?}", meta.mode(), meta.ino(), meta.nlink());
        found.insert(entry.into_path(), state);
    }
    found
}

/// How many descriptors this process holds on what lies below `root`.
pub(crate) fn descriptors(root: &Path) -> usize {
    let held = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    held.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(root))).count()
}
