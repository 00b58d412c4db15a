//! Each folder in `scenarios` is one call of a tool that changes files: `call.json` is the call, `input` the workspace
//! before it, `expected` the workspace after it (as `input` where it is missing), and `result.json` what the call
//! answers. They are the examples of the two editing tools.
//!
//! `call.json` holds `tool` and `args`, and may hold `config`, calls that come `before`, and files that someone else
//! writes between (`meanwhile`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kgent_tools::result::{Content, Data, ToolResult};
use serde_json::{Value, json};

use crate::support::{Fixture, Setup};

/// Set to write the results of new scenarios, to be read before they are kept.
const WRITE: &str = "KGENT_WRITE_SCENARIOS";

/// Every file below `root` with its bytes.
fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = walkdir::WalkDir::new(root).into_iter().flatten().filter(|entry| entry.file_type().is_file());
    let file = |path: &Path| (path.strip_prefix(root).unwrap().to_owned(), std::fs::read(path).unwrap());
    entries.map(|entry| file(entry.path())).collect()
}

fn shown(result: &ToolResult) -> Value {
    let text = |part: &Content| match part {
        Content::Text(text) => text.to_string(),
        Content::File { media_type, .. } => media_type.clone(),
    };
    let mut value = json!({"content": result.content.iter().map(text).collect::<Vec<_>>()});
    match &result.error {
        Some(error) => value["code"] = json!(error.code.as_str()),
        None => value["data"] = result.data.as_ref().map_or(Value::Null, Data::to_value),
    }
    value
}

fn run(folder: &Path) {
    let name = folder.file_name().unwrap().to_string_lossy();
    let call: Value = serde_json::from_slice(&std::fs::read(folder.join("call.json")).unwrap()).expect(&name);
    let config = call.get("config").cloned().unwrap_or_else(|| json!({}));
    let fixture = Fixture::with(&Setup { config, in_memory: true, ..Setup::default() });
    std::fs::remove_dir_all(fixture.workspace.join("in")).unwrap();
    std::fs::remove_file(fixture.workspace.join("top.txt")).unwrap();
    let lay = |path: &Path, bytes: &[u8]| {
        let path = fixture.workspace.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    };
    let input = files(&folder.join("input"));
    for (path, bytes) in &input {
        lay(path, bytes);
    }
    for before in call["before"].as_array().into_iter().flatten() {
        let result = fixture.call(before["tool"].as_str().unwrap(), before["args"].clone());
        assert!(result.ok, "{name}: {result:?}");
    }
    for (path, text) in call["meanwhile"].as_object().into_iter().flatten() {
        lay(Path::new(path), text.as_str().unwrap().as_bytes());
    }
    let unchanged = files(&fixture.workspace);
    let result = shown(&fixture.call(call["tool"].as_str().unwrap(), call["args"].clone()));
    let expected = folder.join("expected");
    let expected = if expected.exists() { files(&expected) } else { unchanged };
    assert_eq!(files(&fixture.workspace), expected, "{name}: {result:#}");
    let path = folder.join("result.json");
    if std::env::var_os(WRITE).is_some() && !path.exists() {
        std::fs::write(&path, format!("{result:#}\n")).unwrap();
    }
    let wanted: Value = serde_json::from_slice(&std::fs::read(path).expect(&name)).expect(&name);
    assert_eq!(result, wanted, "{name}: {result:#}");
}

#[test]
fn every_scenario_ends_as_it_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rust/scenarios");
    let mut folders: Vec<PathBuf> = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() > 60, "{} scenarios", folders.len());
    for folder in &folders {
        run(folder);
    }
}
