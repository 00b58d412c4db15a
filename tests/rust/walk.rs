//! The walk of listings and searches: it lists what an independent walk lists, in the same order, however the tree is
//! shaped, with few descriptors.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::Thing::{Directory, Fifo, File, Link};
use crate::support::{Fixture, INSIDE, Setup, answer, descriptors, visible};

/// The most descriptors that a walk may hold.
const MAX_DESCRIPTORS: usize = 64;

/// Limits that cut nothing off.
fn wide_open() -> Setup<'static> {
    let limits = json!({"max_results": 1_000_000, "max_output_bytes": 67_108_864, "max_output_lines": 1_000_000});
    Setup { config: json!({ "limits": limits }), in_memory: true, ..Setup::default() }
}

fn list_all(fixture: &Fixture) -> Value {
    let result = fixture.call("list_files", json!({"depth": 256, "hidden": true, "ignored": true}));
    assert_eq!(answer(&result), "ok", "{result:?}");
    result.data.unwrap().to_value()
}

/// The entries as an independent walk has them: name, type, size; those in a `.git` left out.
fn expected(root: &Path) -> Vec<(PathBuf, &'static str, Option<u64>)> {
    let walk = walkdir::WalkDir::new(root).min_depth(1).max_depth(256).sort_by_file_name();
    let kept = walk.into_iter().map(Result::unwrap).filter(|entry| {
        let above = entry.path().parent().unwrap().strip_prefix(root).unwrap();
        !above.components().any(|part| part.as_os_str() == ".git")
    });
    kept.map(|entry| {
        let meta = entry.path().symlink_metadata().unwrap();
        let kind = match meta.file_type() {
            kind if kind.is_file() => "file",
            kind if kind.is_dir() => "directory",
            kind if kind.is_symlink() => "link",
            _ => "fifo",
        };
        let size = (kind == "file").then_some(meta.len());
        (entry.path().strip_prefix(root).unwrap().to_owned(), kind, size)
    })
    .collect()
}

/// The entries of a listing in the same form; each printed path is read back.
fn listed<'a>(fixture: &Fixture, data: &'a Value) -> Vec<(PathBuf, &'a str, Option<u64>)> {
    let sandbox = fixture.context.run().sandbox();
    let entry = |entry: &'a Value| {
        let path = sandbox.parse(entry["path"].as_str().unwrap()).unwrap();
        (OsStr::from_bytes(path.rel()).into(), entry["type"].as_str().unwrap(), entry["size"].as_u64())
    };
    data["entries"].as_array().unwrap().iter().map(entry).collect()
}

/// A tree: names and what they are.
#[derive(Clone, Debug)]
enum Node {
    File(u8),
    Link,
    Fifo,
    Directory(Vec<(Vec<u8>, Self)>),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let odd = prop::collection::vec(any::<u8>().prop_map(|b| if b == 0 || b == b'/' { b'_' } else { b }), 1..9);
    let plain = "[.]?[a-c]{1,2}([.-][a-c])?".prop_map(String::into_bytes);
    let known =
        prop::sample::select(vec![".git", ".gitignore", ".ignore", "workspace", "~", "node_modules", "A", "a b"]);
    prop_oneof![4 => plain, 2 => odd, 1 => known.prop_map(|name| name.as_bytes().to_vec())]
        .prop_filter("a name", |name| name != b"." && name != b"..")
}

fn tree() -> impl Strategy<Value = Vec<(Vec<u8>, Node)>> {
    let leaf = prop_oneof![5 => any::<u8>().prop_map(Node::File), 1 => Just(Node::Link), 1 => Just(Node::Fifo)];
    let node =
        leaf.prop_recursive(6, 60, 8, |inner| prop::collection::vec((name(), inner), 0..8).prop_map(Node::Directory));
    prop::collection::vec((name(), node), 0..10)
}

fn plant(fixture: &Fixture, at: &Path, nodes: &[(Vec<u8>, Node)]) {
    let mut taken = BTreeSet::new();
    for (name, node) in nodes {
        if !taken.insert(name) {
            continue;
        }
        let at = at.join(OsStr::from_bytes(name));
        match node {
            Node::File(size) => fixture.lay(&at, File(&"*\n".repeat(usize::from(*size)))),
            Node::Link => fixture.lay(&at, Link("../..")),
            Node::Fifo => fixture.lay(&at, Fifo),
            Node::Directory(below) => {
                fixture.lay(&at, Directory);
                plant(fixture, &at, below);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn a_listing_is_what_an_independent_walk_finds(nodes in tree()) {
        let fixture = Fixture::with(&wide_open());
        plant(&fixture, Path::new("grown"), &nodes);
        let data = list_all(&fixture);
        prop_assert_eq!(listed(&fixture, &data), expected(&fixture.workspace));
        prop_assert_eq!((&data["truncated"], &data["skipped"]), (&json!(false), &json!({})));
    }
}

/// A chain of folders, with a file after the folder in each.
fn chain(fixture: &Fixture, depth: usize, name: &str) {
    let mut at = PathBuf::from("chain");
    for _ in 0..depth {
        at.push(name);
    }
    // One level at a time: the whole path may be longer than the kernel takes.
    let mut dir = rustix::fs::open(&fixture.workspace, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    for part in &at {
        rustix::fs::mkdirat(&dir, part, rustix::fs::Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let file = rustix::fs::openat(&dir, "z", flags, rustix::fs::Mode::RUSR).unwrap();
        rustix::io::write(file, INSIDE.as_bytes()).unwrap();
        dir = rustix::fs::openat(&dir, part, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    }
}

#[test]
fn a_tree_deeper_than_the_walk_goes_is_counted() {
    let fixture = Fixture::with(&wide_open());
    chain(&fixture, 299, "d");
    let data = list_all(&fixture);
    assert_eq!(listed(&fixture, &data), expected(&fixture.workspace));
    let found = fixture.call("grep_files", json!({"pattern": "INSIDE"})).data.unwrap().to_value();
    // 256 levels with one match each, and the fixture's own two files.
    assert_eq!((&found["count"], &found["skipped"]), (&json!(256 + 2), &json!({"too_deep": 1})));
}

#[test]
fn a_walk_comes_back_through_names_longer_than_a_path() {
    let fixture = Fixture::with(&wide_open());
    chain(&fixture, 100, &"n".repeat(200));
    let data = list_all(&fixture);
    let entries = data["entries"].as_array().unwrap();
    // In the workspace: in, in/a.txt, top.txt, z and chain; then a folder and a file in each level but the last.
    assert_eq!((entries.len(), &data["skipped"]), (5 + 2 * 100, &json!({})));
    let found = fixture.call("grep_files", json!({"pattern": "INSIDE"})).data.unwrap().to_value();
    assert_eq!((&found["count"], &found["skipped"]), (&json!(101 + 2), &json!({})));
}

#[test]
fn a_wide_folder_is_listed_whole_or_said_to_be_cut() {
    let fixture = Fixture::with(&wide_open());
    for n in 0..20_000 {
        std::fs::write(fixture.workspace.join(format!("in/{n:05}")), "").unwrap();
    }
    let data = list_all(&fixture);
    assert_eq!(listed(&fixture, &data), expected(&fixture.workspace));
    assert_eq!(data["truncated"], json!(false));

    let limits = json!({"limits": {"max_results": 100, "max_scan_files": 1000}});
    let narrow = Fixture::with(&Setup { config: limits, in_memory: true, ..Setup::default() });
    for n in 0..2000 {
        std::fs::write(narrow.workspace.join(format!("in/{n:05}")), "").unwrap();
    }
    for args in [json!({"path": "in"}), json!({"depth": 2}), json!({"path": "in", "pattern": "*9"})] {
        let data = narrow.call("list_files", args.clone()).data.unwrap().to_value();
        assert_eq!(data["truncated"], json!(true), "{args}");
        assert!(data["entries"].as_array().unwrap().len() <= 100, "{args}");
    }
}

#[test]
fn a_walk_holds_few_descriptors() {
    let fixture = Fixture::with(&wide_open());
    chain(&fixture, 240, "d");
    for n in 0..300 {
        fixture.lay(format!("wide/{n}/deeper/z"), File(INSIDE));
    }
    let before = descriptors(fixture.path());
    let over = AtomicBool::new(false);
    for (tool, args) in [
        ("list_files", json!({"depth": 256})),
        ("glob_files", json!({"pattern": "**"})),
        ("grep_files", json!({"pattern": "INSIDE"})),
        ("grep_files", json!({"pattern": "INSIDE", "output": "files"})),
    ] {
        over.store(false, Ordering::Relaxed);
        let most = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = 0;
                while !over.load(Ordering::Relaxed) {
                    most = most.max(descriptors(fixture.path()));
                }
                most
            });
            for _ in 0..10 {
                assert_eq!(answer(&fixture.call(tool, args.clone())), "ok");
            }
            over.store(true, Ordering::Relaxed);
            watch.join().unwrap()
        });
        assert!(most > before, "{tool} was not seen to hold anything");
        assert!(most - before <= MAX_DESCRIPTORS, "{tool} {args} held {} descriptors", most - before);
        assert_eq!(descriptors(fixture.path()), before, "{tool} left descriptors open");
    }
}

#[test]
fn ignore_files_that_are_links_or_pipes_are_not_read() {
    let fixture = Fixture::new();
    std::fs::write(fixture.outside.join("rules"), "*\n").unwrap();
    fixture.lay(".gitignore", Link("../outside/rules"));
    fixture.lay("in/.ignore", Fifo);
    fixture.lay("sub/.gitignore", Link("../in/rules"));
    fixture.lay("in/rules", File("*\n"));
    fixture.lay("sub/a.txt", File(INSIDE));
    let data = fixture.call("list_files", json!({"depth": 9})).data.unwrap().to_value();
    let names: Vec<_> =
        listed(&fixture, &data).into_iter().map(|(path, ..)| path.into_os_string().into_vec()).collect();
    let expected = ["in", "in/a.txt", "in/rules", "sub", "sub/a.txt", "top.txt"].map(|name| name.as_bytes().to_vec());
    assert_eq!(names, expected);
}

#[test]
fn a_capped_answer_is_the_same_each_time() {
    let limits = json!({"max_results": 40, "max_output_lines": 1_000_000});
    let fixture = Fixture::with(&Setup { config: json!({ "limits": limits }), in_memory: true, ..Setup::default() });
    // Each folder holds what is found and what is left out; some files take longer than others.
    for n in 0..300 {
        fixture.lay(format!("t/{:02}/{n:03}/a", n % 7), File("x\ny\nx\n"));
        fixture.lay(format!("t/{:02}/{n:03}/b", n % 7), File(&"y\n".repeat(n % 5 * 10_000)));
        fixture.lay(format!("t/{:02}/{n:03}/binary", n % 7), File("\0"));
        fixture.lay(format!("t/{:02}/{n:03}/link", n % 7), Link("a"));
        fixture.lay(format!("t/{:02}/{n:03}/.hidden", n % 7), File("x\n"));
    }
    for (tool, args) in [
        ("grep_files", json!({"pattern": "x"})),
        ("grep_files", json!({"pattern": "x", "context": 1})),
        ("grep_files", json!({"pattern": "x|y", "output": "count"})),
        ("grep_files", json!({"pattern": "nothing", "output": "files"})),
        ("list_files", json!({"depth": 9})),
        ("list_files", json!({"depth": 9, "pattern": "link"})),
        ("glob_files", json!({"pattern": "b"})),
    ] {
        let first = visible(&fixture.call(tool, args.clone()));
        for _ in 0..20 {
            assert_eq!(visible(&fixture.call(tool, args.clone())), first, "{tool} {args}");
        }
    }
}
