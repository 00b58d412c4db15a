//! A write is whole or not at all, and overwrites nothing that its caller has not seen: also where the file system can
//! neither exchange two names nor keep one that is there (`--features force-plain-rename`).

use serde_json::{Value, json};

use crate::support::Thing::File;
use crate::support::{Fixture, answer};

fn hash(fixture: &Fixture, path: &str) -> Value {
    fixture.call("read_file", json!({ "path": path })).data.unwrap().to_value()["hash"].clone()
}

/// The names and contents in the folder `in`.
fn folder(fixture: &Fixture) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(fixture.workspace.join("in")).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())
    };
    let mut found: Vec<_> = entries.map(read).collect();
    found.sort();
    found
}

#[test]
fn a_write_lands_or_leaves_everything_as_it_was() {
    let fixture = Fixture::new();
    fixture.lay("in/a.txt", File("one\n"));
    let write = |args: Value| answer(&fixture.call("write_file", args));
    let seen = hash(&fixture, "in/a.txt");
    assert_eq!(write(json!({"path": "in/new", "content": "new\n"})), "ok");
    assert_eq!(write(json!({"path": "in/a.txt", "content": "two\n", "expected_hash": seen})), "ok");
    assert_eq!(write(json!({"path": "in/a.txt", "content": "three\n", "expected_hash": seen})), "stale");
    assert_eq!(write(json!({"path": "in/b", "content": "b\n", "expected_hash": seen})), "stale");
    assert_eq!(write(json!({"path": "in/new", "content": "newer\n"})), "ok");
    let expected = [("a.txt", "two\n"), ("new", "newer\n")].map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(folder(&fixture), expected);
}

#[test]
fn guarantees_say_whether_a_replace_can_give_back_what_it_displaced() {
    let fixture = Fixture::new();
    let said = fixture.context.run().guarantees()["mounts"]["workspace"]["atomic_exchange"].clone();
    let (one, other) = (fixture.workspace.join("top.txt"), fixture.workspace.join("in/a.txt"));
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    let can = rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, flags).is_ok();
    assert!(can || said == json!(false), "more is said than is so");
    assert!(!cfg!(feature = "force-plain-rename") || said == json!(false));
}
