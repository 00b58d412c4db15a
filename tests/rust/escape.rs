//! Every tool, by every way in: nothing outside is read, written, created, listed or named, and what leads to a place
//! inside works.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use kgent_tools::result::ToolResult;
use serde_json::{Value, json};

use crate::support::Thing::{Device, Directory, Fifo, File, Hard, Link, Socket};
use crate::support::{CANARY, CANARY_PATTERN, Fixture, INSIDE, Setup, Thing, answer, can_make_devices, tree, visible};

const TOOLS: [&str; 5] = ["read_file", "list_files", "glob_files", "grep_files", "write_file"];
const WRITTEN: &str = "WRITTEN";

/// What the tools answer: reading; listing and globbing; searching; writing.
type Answers = [&'static str; 4];

const OUT: Answers = ["outside_sandbox"; 4];
const ABSENT: Answers = ["not_found"; 4];
const INVALID: Answers = ["invalid_args"; 4];
const DENIED: Answers = ["denied"; 4];
const THROUGH_A_FILE: Answers = ["not_a_directory"; 4];
const A_FILE: Answers = ["ok", "not_a_directory", "ok", "ok"];
const A_FOLDER: Answers = ["is_directory", "ok", "ok", "is_directory"];
const A_NEW_NAME: Answers = ["not_found", "not_found", "not_found", "ok"];
const SPECIAL: Answers = ["not_regular_file", "not_a_directory", "not_regular_file", "not_regular_file"];
const PROTECTED: Answers = ["ok", "not_a_directory", "ok", "read_only"];
const PROTECTED_NEW_NAME: Answers = ["not_found", "not_found", "not_found", "read_only"];
const SECRET: Answers = ["denied", "not_a_directory", "denied", "ok"];
const SHARED: Answers = ["denied", "not_a_directory", "denied", "denied"];

fn arguments(tool: &str, path: &str) -> Value {
    match tool {
        "read_file" => json!({"path": path}),
        "write_file" => json!({"path": path, "content": WRITTEN}),
        "list_files" => json!({"path": path, "depth": 256, "hidden": true, "ignored": true}),
        "glob_files" => json!({"path": path, "pattern": "**", "hidden": true, "ignored": true}),
        _ => json!({"path": path, "pattern": format!("{CANARY_PATTERN}|INSIDE"), "hidden": true, "ignored": true}),
    }
}

fn expected(answers: &Answers) -> impl Iterator<Item = (&'static str, &'static str)> {
    let [read, list, search, write] = *answers;
    TOOLS.into_iter().zip([read, list, list, search, write])
}

/// A way in: what lies in the workspace, what the model sends, what each tool answers.
type Way<'a> = (&'a [(&'a str, Thing<'a>)], &'a str, Answers);

/// Sends `path` to each tool, and holds the answer and all that must hold beside it. Each way has a fixture of its own.
fn hold(setup: &Setup<'_>, ways: &[Way<'_>]) {
    for (things, path, answers) in ways {
        if things.iter().any(|(_, thing)| matches!(thing, Device)) && !can_make_devices() {
            continue;
        }
        let fixture = Fixture::with(setup);
        for (at, thing) in *things {
            fixture.lay(at, *thing);
        }
        let path = fixture.fill(path);
        let outside = || [tree(&fixture.outside), tree(&fixture.path().join("ws-evil"))];
        let (before, links_before, outside_before) = (tree(&fixture.workspace), links(&fixture), outside());
        for (tool, expected) in expected(answers) {
            let what = format!("{tool} {path:?} with {things:?}");
            let result = fixture.call(tool, arguments(tool, &path));
            assert_eq!(answer(&result), expected, "{what}: {result:?}");
            assert!(!visible(&result).contains(CANARY), "{what}: {result:?}");
            if result.ok && tool == "write_file" {
                assert_eq!(written(&fixture), 1, "{what}: not exactly one file was written");
            } else {
                assert_eq!(tree(&fixture.workspace), before, "{what}: the workspace changed");
            }
            assert_eq!(links(&fixture), links_before, "{what}: a link was replaced");
            assert_eq!(outside(), outside_before, "{what}: the outside changed");
        }
        // A walk from the root names nothing outside either, and ends.
        for tool in ["list_files", "glob_files", "grep_files"] {
            let walked = fixture.call(tool, arguments(tool, "."));
            assert_eq!(answer(&walked), "ok", "{path:?} with {things:?}, then {tool}");
            assert!(!visible(&walked).contains(CANARY), "{path:?} with {things:?}, then {tool}: {walked:?}");
        }
        assert!(!fixture.logs().contains(CANARY), "{path:?} with {things:?}: a log names the outside");
        assert_eq!(fixture.log_lines("logs/tools.jsonl").len(), 8, "one record for each call");
    }
}

/// The links in the workspace.
fn links(fixture: &Fixture) -> Vec<String> {
    let links = tree(&fixture.workspace).into_iter().filter(|(path, _)| path.is_symlink());
    links.map(|(path, state)| format!("{} {state}", path.display())).collect()
}

/// How many files below the workspace and the mounts hold what was written.
fn written(fixture: &Fixture) -> usize {
    let files = walkdir::WalkDir::new(fixture.path()).into_iter().flatten().filter(|e| e.file_type().is_file());
    files.filter(|e| std::fs::read(e.path()).is_ok_and(|bytes| bytes == WRITTEN.as_bytes())).count()
}

#[test]
fn names_that_lead_out_are_refused() {
    let ways: &[Way<'_>] = &[
        (&[], "..", OUT),
        (&[], "../outside", OUT),
        (&[], "../outside/secret.txt", OUT),
        (&[], "..//outside/./secret.txt", OUT),
        (&[], "../ws-evil/secret.txt", OUT),
        (&[], "../ws/top.txt", OUT),
        (&[], "in/../../outside/secret.txt", OUT),
        (&[], "in/../../../../../../../etc/hostname", OUT),
        (&[], "nothing/../../outside/new.txt", OUT),
        (&[], "workspace/../../outside/secret.txt", OUT),
        (&[], "deliverables/../workspace/top.txt", OUT),
        (&[], "artifacts/../../../outside/secret.txt", OUT),
        (&[], "/", OUT),
        (&[], "/etc/hostname", OUT),
        (&[], "/kgent_probe_output.txt", OUT),
        (&[], "{tmp}", OUT),
        (&[], "{outside}/secret.txt", OUT),
        (&[], "{tmp}/ws-evil/secret.txt", OUT),
        (&[], "{ws}/../outside/secret.txt", OUT),
        (&[], "{ws}-evil/secret.txt", OUT),
        (&[], "/proc/self/root/etc/hostname", OUT),
        (&[], "/proc/self/cwd", OUT),
        (&[], "/dev/zero", OUT),
        (&[], "~", OUT),
        (&[], "~/notes.txt", OUT),
        (&[], "~root/x", OUT),
        (&[], "\"../outside/secret.txt\"", OUT),
        (&[], "\"\\x2e\\x2e/outside/secret.txt\"", OUT),
        (&[], "\"\\u{2e}.\\x2foutside/secret.txt\"", OUT),
        (&[], "\"{outside}/secret.txt\"", OUT),
        (&[], "", INVALID),
        (&[], "a\0b", INVALID),
        (&[], "\"a\\x00b\"", INVALID),
        (&[], &"n".repeat(256), INVALID),
        (&[], &"n/".repeat(2100), INVALID),
    ];
    hold(&Setup::default(), ways);
}

#[test]
fn names_are_taken_as_they_are() {
    let ways: &[Way<'_>] = &[
        (&[], "top.txt", A_FILE),
        (&[], "./in//a.txt", A_FILE),
        (&[], "in/../top.txt", A_FILE),
        (&[], "workspace/top.txt", A_FILE),
        (&[], "{ws}/top.txt", A_FILE),
        (&[], "\"top.txt\"", A_FILE),
        (&[], ".", A_FOLDER),
        (&[], "in/", A_FOLDER),
        (&[], "{ws}", A_FOLDER),
        (&[], "top.txt/x", THROUGH_A_FILE),
        (&[], "missing/parents/x.txt", A_NEW_NAME),
        (&[], "..%2Foutside%2Fsecret.txt", A_NEW_NAME),
        (&[], "%2e%2e/outside/secret.txt", A_NEW_NAME),
        (&[], "file:///etc/hostname", A_NEW_NAME),
        (&[], "..\\outside\\secret.txt", A_NEW_NAME),
        (&[], "a~", A_NEW_NAME),
        (&[], "in/~b.txt", A_NEW_NAME),
        (&[], "...", A_NEW_NAME),
        (&[], "v1..v2/x", A_NEW_NAME),
        (&[], "nul", A_NEW_NAME),
        (&[], "-n", A_NEW_NAME),
        (&[("[...slug].ts", File(INSIDE))], "[...slug].ts", A_FILE),
        (&[("..hidden", File(INSIDE))], "..hidden", A_FILE),
        (&[("a%20b.txt", File(INSIDE)), ("a b.txt", File("other"))], "a%20b.txt", A_FILE),
    ];
    hold(&Setup::default(), ways);
}

#[test]
fn links_that_lead_out_are_refused() {
    let long = "../outside/".to_owned() + &"dir/../".repeat(200) + "secret.txt";
    let ways: &[Way<'_>] = &[
        // To a folder, and what is, is not or could be made in it.
        (&[("way", Link("../outside"))], "way", OUT),
        (&[("way", Link("../outside"))], "way/", OUT),
        (&[("way", Link("../outside"))], "way/secret.txt", OUT),
        (&[("way", Link("../outside"))], "way/absent.txt", OUT),
        (&[("way", Link("../outside"))], "way/new/parents/x.txt", OUT),
        (&[("way", Link("../outside"))], "way/../top.txt", OUT),
        (&[("way", Link("../outside"))], "way/../ws/top.txt", OUT),
        (&[("way", Link("{outside}"))], "way/secret.txt", OUT),
        (&[("way", Link("/"))], "way/etc/hostname", OUT),
        (&[("way", Link(".."))], "way/outside/secret.txt", OUT),
        (&[("in/up", Link("../.."))], "in/up/outside/secret.txt", OUT),
        (&[("way", Link("in/../../outside"))], "way/secret.txt", OUT),
        (&[("way", Link("{ws}/../outside"))], "way/secret.txt", OUT),
        (&[("way", Link("{ws}-evil"))], "way/secret.txt", OUT),
        // To a file.
        (&[("way", Link("../outside/secret.txt"))], "way", OUT),
        (&[("way", Link("{outside}/secret.txt"))], "way", OUT),
        (&[("way", Link(&long))], "way", OUT),
        // Dangling: at the last component, and before it.
        (&[("way", Link("../outside/absent.txt"))], "way", OUT),
        (&[("way", Link("{outside}/absent.txt"))], "way", OUT),
        (&[("way", Link("../absent/deeper"))], "way/x.txt", OUT),
        // Chains.
        (&[("one", Link("two")), ("two", Link("../outside"))], "one/secret.txt", OUT),
        (&[("one", Link("in/two")), ("in/two", Link("../three")), ("three", Link("{outside}"))], "one/secret.txt", OUT),
        (&[("one", Link("two/secret.txt")), ("two", Link("../outside"))], "one", OUT),
        (&[("one", Link("two")), ("two", Link("../outside/absent.txt"))], "one", OUT),
        // Devices and what the kernel keeps in /proc.
        (&[("way", Link("/dev/zero"))], "way", OUT),
        (&[("way", Link("/dev/stdin"))], "way", OUT),
        (&[("way", Link("/proc/self/root/etc/hostname"))], "way", OUT),
        (&[("way", Link("/proc/self/root{ws}/top.txt"))], "way", OUT),
        (&[("way", Link("/proc/self/cwd"))], "way", OUT),
        (&[("way", Link("/proc/self/environ"))], "way", OUT),
        (&[("way", Link("/proc/self/fd/0"))], "way", OUT),
    ];
    hold(&Setup::default(), ways);
}

#[test]
fn links_inside_work() {
    let ways: &[Way<'_>] = &[
        (&[("way", Link("in"))], "way", A_FOLDER),
        (&[("way", Link("in"))], "way/a.txt", A_FILE),
        (&[("way", Link("in"))], "way/new/x.txt", A_NEW_NAME),
        (&[("way", Link("in"))], "way/../top.txt", A_FILE),
        (&[("way", Link("{ws}/in"))], "way/a.txt", A_FILE),
        (&[("way", Link("{ws}"))], "way/in/a.txt", A_FILE),
        (&[("way", Link("in/a.txt"))], "way", A_FILE),
        (&[("way", Link("./in/../in//a.txt"))], "way", A_FILE),
        (&[("in/up", Link(".."))], "in/up/top.txt", A_FILE),
        (&[("way", Link("../ws/top.txt"))], "way", A_FILE),
        (&[("way", Link("in/new.txt"))], "way", A_NEW_NAME),
        (&[("way", Link("new/parents"))], "way/x.txt", A_NEW_NAME),
        (&[("one", Link("two")), ("two", Link("{ws}/three")), ("three", Link("in"))], "one/a.txt", A_FILE),
        (&[("self", Link("self"))], "self", ABSENT),
        (&[("self", Link("self"))], "self/x", ABSENT),
        (&[("one", Link("two")), ("two", Link("in/../one"))], "one", ABSENT),
        (&[("way", Link("{ws}/deeper")), ("deeper", Link("way"))], "way/x", ABSENT),
        (&[("way", Link("top.txt"))], "way/x", THROUGH_A_FILE),
    ];
    hold(&Setup::default(), ways);
}

#[test]
fn a_chain_of_links_has_the_kernels_length() {
    for (length, answers) in [(40, A_FILE), (41, ABSENT)] {
        let names: Vec<(String, String)> = (1..=length)
            .map(|n| (format!("l{n}"), if n == 1 { "in/a.txt".into() } else { format!("l{}", n - 1) }))
            .collect();
        let things: Vec<_> = names.iter().map(|(at, target)| (at.as_str(), Link(target))).collect();
        hold(&Setup::default(), &[(&things, &format!("l{length}"), answers)]);
    }
}

#[test]
fn special_files_are_neither_read_nor_written_nor_waited_for() {
    let ways: &[Way<'_>] = &[
        (&[("way", Fifo)], "way", SPECIAL),
        (&[("way", Fifo)], "way/x", THROUGH_A_FILE),
        (&[("pipe", Fifo), ("way", Link("pipe"))], "way", SPECIAL),
        (&[(".ignore", Fifo), (".gitignore", Fifo)], "in/a.txt", A_FILE),
        (&[("way", Socket)], "way", SPECIAL),
        (&[("socket", Socket), ("way", Link("{ws}/socket"))], "way", SPECIAL),
        (&[("way", Device)], "way", SPECIAL),
        (&[("device", Device), ("way", Link("device"))], "way", SPECIAL),
    ];
    hold(&Setup::default(), ways);
}

#[test]
fn a_walk_counts_what_it_does_not_search() {
    let fixture = Fixture::new();
    fixture.lay("pipe", Fifo);
    fixture.lay("socket", Socket);
    fixture.lay("out", Link("../outside"));
    fixture.lay("self", Link("self"));
    let result = fixture.call("grep_files", json!({"pattern": format!("{CANARY_PATTERN}|INSIDE")}));
    let data = result.data.unwrap().to_value();
    assert_eq!((&data["count"], &data["skipped"]), (&json!(2), &json!({"links": 2, "special": 2})));
    let listed = fixture.call("list_files", json!({})).data.unwrap().to_value();
    assert_eq!(
        listed["entries"],
        json!([
            {"path": "in", "type": "directory", "size": null},
            {"path": "out", "type": "link", "size": null},
            {"path": "pipe", "type": "fifo", "size": null},
            {"path": "self", "type": "link", "size": null},
            {"path": "socket", "type": "socket", "size": null},
            {"path": "top.txt", "type": "file", "size": INSIDE.len()},
        ])
    );
}

#[test]
fn links_in_circles_are_not_followed() {
    let fixture = Fixture::new();
    for n in 0..8 {
        fixture.lay(format!("d{n}/file"), File(INSIDE));
        for to in 0..8 {
            fixture.lay(format!("d{n}/to{to}"), Link(&format!("../d{to}")));
        }
    }
    fixture.lay("up", Link(".."));
    fixture.lay("root", Link("/"));
    let found = fixture.call("grep_files", json!({"pattern": "INSIDE", "output": "files"})).data.unwrap().to_value();
    let names: Vec<String> =
        (0..8).map(|n| format!("d{n}/file")).chain(["in/a.txt".into(), "top.txt".into()]).collect();
    assert_eq!(found["files"], json!(names));
    let listed = fixture.call("list_files", json!({"depth": 99})).data.unwrap().to_value();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 8 * 10 + 5);
}

#[test]
fn a_hard_link_is_read_as_configured_and_written_apart() {
    let open = Fixture::new();
    open.lay("way", Hard("secret.txt"));
    assert_eq!(answer(&open.call("read_file", json!({"path": "way"}))), "ok");
    let before = std::fs::read(open.outside.join("secret.txt")).unwrap();
    assert_eq!(answer(&open.call("write_file", json!({"path": "way", "content": WRITTEN}))), "ok");
    assert_eq!(std::fs::read(open.outside.join("secret.txt")).unwrap(), before);
    assert_eq!(std::fs::read(open.workspace.join("way")).unwrap(), WRITTEN.as_bytes());

    let setup = Setup { config: json!({"sandbox": {"hard_links": "deny"}}), ..Setup::default() };
    hold(&setup, &[(&[("way", Hard("secret.txt"))], "way", SHARED)]);
}

#[test]
fn mounts_that_overlap_hold_the_strictest() {
    let docs: &[(&str, Thing<'_>)] = &[("docs/a.txt", File(INSIDE))];
    let nested: &[Way<'_>] = &[
        (&[], "docs/a.txt", PROTECTED),
        (&[], "workspace/docs/a.txt", PROTECTED),
        (&[], "{ws}/docs/a.txt", PROTECTED),
        (&[], "in/../workspace/docs/a.txt", A_NEW_NAME),
        (&[("way", Link("docs/a.txt"))], "way", PROTECTED),
        (&[("way", Link("{ws}/docs"))], "way/a.txt", PROTECTED),
        (&[("way", Link("docs"))], "way/new/x.txt", PROTECTED_NEW_NAME),
        (&[], "top.txt", A_FILE),
    ];
    hold(&Setup { lay: docs, mounts: &[("docs", "ws/docs", false)], ..Setup::default() }, nested);
    let linked: &[(&str, Thing<'_>)] = &[("docs/a.txt", File(INSIDE)), ("../alias", Link("ws/docs"))];
    hold(&Setup { lay: linked, mounts: &[("docs", "alias", false)], ..Setup::default() }, nested);

    let both = [("docs", "ws/docs", true), ("notes", "ws/docs", false)];
    let equal: &[Way<'_>] = &[
        (&[], "docs/a.txt", PROTECTED),
        (&[], "notes/a.txt", PROTECTED),
        (&[], "workspace/docs/a.txt", PROTECTED),
        (&[], "top.txt", A_FILE),
    ];
    hold(&Setup { lay: docs, mounts: &both, ..Setup::default() }, equal);

    let around: &[Way<'_>] = &[(&[], "top.txt", PROTECTED), (&[], "around/ws/top.txt", PROTECTED)];
    let setup = Setup { workspace: "project/ws", mounts: &[("around", "project", false)], ..Setup::default() };
    hold(&setup, around);
}

#[test]
fn a_link_into_another_mount_has_that_mounts_mode() {
    let setup = |writable| Setup {
        lay: &[("../docs/a.txt", File(INSIDE))],
        mounts: if writable { &[("docs", "docs", true)] } else { &[("docs", "docs", false)] },
        ..Setup::default()
    };
    for (way, path) in [
        (("way", Link("../docs/a.txt")), "way"),
        (("way", Link("{tmp}/docs")), "way/a.txt"),
        (("way", Link("{tmp}/docs/../docs/a.txt")), "way"),
        (("way", Link("in")), "docs/a.txt"),
    ] {
        hold(&setup(true), &[(&[way], path, A_FILE)]);
        hold(&setup(false), &[(&[way], path, PROTECTED)]);
    }
    hold(&setup(true), &[(&[("way", Link("../docs/../outside/secret.txt"))], "way", OUT)]);
    hold(&setup(true), &[(&[("../docs/way", Link("../outside"))], "docs/way/secret.txt", OUT)]);
    hold(&setup(true), &[(&[("../docs/way", Link("../ws/top.txt"))], "docs/way", A_FILE)]);
}

#[test]
fn what_is_denied_is_denied_under_every_name() {
    let rules = json!([{"action": "*", "resource": "docs/**", "effect": "deny"},
                       {"action": "*", "resource": "private/**", "effect": "deny"}]);
    let setup = Setup {
        lay: &[("docs/a.txt", File(CANARY)), ("private/a.txt", File(CANARY)), ("in/.env", File(CANARY))],
        mounts: &[("docs", "ws/docs", true)],
        config: json!({"permissions": {"rules": rules}, "sandbox": {"hidden": ["unseen"]}}),
        ..Setup::default()
    };
    let ways: &[Way<'_>] = &[
        (&[], "docs/a.txt", DENIED),
        (&[], "workspace/docs/a.txt", DENIED),
        (&[], "{ws}/docs/a.txt", DENIED),
        (&[], "private/a.txt", DENIED),
        (&[], "private/absent.txt", DENIED),
        (&[], "private", DENIED),
        (&[], "in/../private/a.txt", DENIED),
        (&[("way", Link("private"))], "way/a.txt", DENIED),
        (&[("way", Link("private/a.txt"))], "way", DENIED),
        (&[("way", Link("private/absent.txt"))], "way", DENIED),
        (&[("one", Link("two")), ("two", Link("{ws}/docs"))], "one/a.txt", DENIED),
        (&[("way", Link("in"))], "way/../private/a.txt", DENIED),
        (&[("way", Link("private"))], "way/../top.txt", A_FILE),
        (&[], "in/.env", SECRET),
        (&[("way", Link("in/.env"))], "way", SECRET),
        (&[("unseen/a.txt", File(CANARY))], "unseen/a.txt", ABSENT),
        (&[("unseen/a.txt", File(CANARY)), ("way", Link("unseen"))], "way/a.txt", ABSENT),
    ];
    hold(&setup, ways);
}

#[test]
fn protected_names_are_not_written() {
    let setup = Setup {
        lay: &[
            (".git/config", File(INSIDE)),
            ("sub/.git", File("gitdir: ../../outside\n")),
            ("kgent.toml", File(INSIDE)),
            ("vendor/a.txt", File(INSIDE)),
        ],
        config: json!({"sandbox": {"read_only": ["vendor/**"]}}),
        config_files: &["ws/kgent.toml"],
        ..Setup::default()
    };
    let ways: &[Way<'_>] = &[
        (&[], ".git/config", PROTECTED),
        (&[], ".git/hooks/pre-commit", PROTECTED_NEW_NAME),
        (&[], "sub/.git", PROTECTED),
        (&[], "new/.git/config", PROTECTED_NEW_NAME),
        (&[("way", Link(".git"))], "way/config", PROTECTED),
        (&[("way", Link("../.git/new")), ("in/way", Link("../.git/new"))], "in/way", PROTECTED_NEW_NAME),
        (&[], "kgent.toml", PROTECTED),
        (&[("way", Link("kgent.toml"))], "way", PROTECTED),
        (&[("way", Link("{ws}"))], "way/kgent.toml", PROTECTED),
        (&[], "vendor/a.txt", PROTECTED),
        (&[], "vendor/new/a.txt", PROTECTED_NEW_NAME),
        (&[("way", Link("vendor"))], "way/a.txt", PROTECTED),
    ];
    hold(&setup, ways);
}

#[test]
fn a_read_only_file_is_not_replaced() {
    let fixture = Fixture::new();
    let path = fixture.workspace.join("top.txt");
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(&path, mode(0o444)).unwrap();
    let result = fixture.call("write_file", arguments("write_file", "top.txt"));
    assert_eq!((answer(&result), std::fs::read_to_string(&path).unwrap().as_str()), ("read_only", INSIDE));
}

#[test]
fn the_runs_directory_is_out_of_reach() {
    let setup = Setup { runs: "ws/runs", ..Setup::default() };
    let ways: &[Way<'_>] = &[
        (&[], "runs", ABSENT),
        (&[], "runs/r/logs/tools.jsonl", ABSENT),
        (&[], "runs/r/events.jsonl", ABSENT),
        (&[], "runs/r/artifacts/x.txt", ABSENT),
        (&[], "workspace/runs/r/deliverables/x.txt", ABSENT),
        (&[], "runs/new/x.txt", ABSENT),
        (&[], "in/../runs/r/events.jsonl", ABSENT),
        (&[("runs/other/events.jsonl", File(CANARY))], "runs/other/events.jsonl", ABSENT),
        (&[("way", Link("runs/r"))], "way/events.jsonl", ABSENT),
        (&[("way", Link("runs"))], "way/r/logs/tools.jsonl", ABSENT),
        (&[("way", Link("runs/r/events.jsonl"))], "way", ABSENT),
        (&[("way", Link("in"))], "way/../runs/r/events.jsonl", ABSENT),
        (&[], "top.txt", A_FILE),
        (&[], "deliverables/new.txt", A_NEW_NAME),
    ];
    // The run writes its own records below the workspace: what changes there is not held to be nothing.
    for (things, path, answers) in ways {
        let fixture = Fixture::with(&setup);
        for (at, thing) in *things {
            fixture.lay(at, *thing);
        }
        for (tool, expected) in expected(answers) {
            let result = fixture.call(tool, arguments(tool, path));
            assert_eq!(answer(&result), expected, "{tool} {path} with {things:?}: {result:?}");
        }
        for tool in ["list_files", "glob_files", "grep_files"] {
            let walked = visible(&fixture.call(tool, arguments(tool, ".")));
            assert!(!walked.contains("events.jsonl") && !walked.contains(CANARY), "{tool}: {walked}");
        }
        assert!(!fixture.logs().contains(WRITTEN));
    }
}

#[test]
fn nothing_is_done_once_the_runs_directory_was_moved() {
    for (runs, moved) in [("ws/runs", "ws/r2"), ("ws/a/runs", "ws/b"), ("runs", "r2")] {
        let fixture = Fixture::with(&Setup { runs, ..Setup::default() });
        let first = fixture.path().join(runs.strip_suffix("/runs").filter(|a| a.ends_with("/a")).unwrap_or(runs));
        std::fs::rename(first, fixture.path().join(moved)).unwrap();
        for tool in TOOLS {
            for path in ["top.txt", "r2/r/events.jsonl", "b/runs/r/events.jsonl"] {
                assert_eq!(answer(&fixture.call(tool, arguments(tool, path))), "sandbox_unavailable", "{tool} {path}");
            }
        }
        assert_eq!(std::fs::read_to_string(fixture.workspace.join("top.txt")).unwrap(), INSIDE);
    }
}

#[test]
fn every_name_that_a_listing_prints_leads_back_to_it() {
    let long = "n".repeat(255);
    let names: &[&[u8]] = &[
        b"line\nbreak:1:forged",
        b"carriage\rreturn",
        b"tab\there",
        b"\x1b[2Jclear",
        "right\u{202e}to left".as_bytes(),
        "zero\u{200b}width".as_bytes(),
        "tag\u{e0041}".as_bytes(),
        "line\u{2028}separator".as_bytes(),
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"d\xe9j\xe0.txt",
        b"d\xe9j\xe1.txt",
        b"quote\"quote",
        b"\"quoted\"",
        b"back\\slash",
        b"-n",
        b"~tilde",
        b"colon:7:x",
        b"[a-z]*?{x,y}",
        b" space ",
        b".kgent-not-quite.tmp",
        b"workspace",
        b"deliverables",
        b"...",
        long.as_bytes(),
    ];
    for name in names {
        let fixture = Fixture::new();
        let (name, shown) = (OsStr::from_bytes(name), name.escape_ascii().to_string());
        let file = std::path::Path::new(name).join(name);
        fixture.lay(&file, File(INSIDE));
        let listed = fixture.call("list_files", arguments("list_files", ".")).data.unwrap().to_value();
        let paths: Vec<&str> =
            listed["entries"].as_array().unwrap().iter().map(|e| e["path"].as_str().unwrap()).collect();
        let printed =
            *paths.iter().find(|p| !["in", "in/a.txt", "top.txt"].contains(p) && is_file(&listed, p)).unwrap();
        assert_eq!(paths.len(), 5, "{shown}");
        // Each path is one line, also to a reader that knows more line ends than `\n`.
        assert!(printed.chars().all(|c| !c.is_control() && !"\u{2028}\u{2029}\u{202e}\u{200b}".contains(c)), "{shown}");

        let read = fixture.call("read_file", arguments("read_file", printed)).data.unwrap().to_value();
        assert_eq!((&read["path"], &read["content"]), (&json!(printed), &json!(INSIDE)), "{shown}");
        let found = fixture.call("grep_files", arguments("grep_files", printed));
        assert_eq!(rows(&found), 1, "{shown}: {found:?}");
        let found = fixture.call("grep_files", arguments("grep_files", "."));
        assert_eq!(rows(&found), 3, "{shown}: {found:?}");
        let row = grep_rows(&found).into_iter().find(|row| !row.starts_with("in/") && !row.starts_with("top")).unwrap();
        let path = row.strip_suffix(":1:INSIDE").expect("the row is path, line, text").to_owned();
        assert_eq!(answer(&fixture.call("read_file", arguments("read_file", &path))), "ok", "{shown}: {path}");

        let result = fixture.call("write_file", arguments("write_file", printed));
        assert_eq!((answer(&result), written(&fixture)), ("ok", 1), "{shown}");
        assert_eq!(std::fs::read(fixture.workspace.join(&file)).unwrap(), WRITTEN.as_bytes(), "{shown}");
        let entries = walkdir::WalkDir::new(&fixture.workspace).into_iter().count();
        assert_eq!(entries, 6, "{shown}: something else was made");
        fixture.log_lines("logs/tools.jsonl");
    }
}

fn is_file(listed: &Value, path: &str) -> bool {
    listed["entries"].as_array().unwrap().iter().any(|e| e["path"] == path && e["type"] == "file")
}

fn rows(found: &ToolResult) -> usize {
    let rows = grep_rows(found).len();
    assert_eq!(found.data.as_ref().unwrap().to_value()["count"], json!(rows));
    rows
}

/// The lines of a search's first part.
fn grep_rows(found: &ToolResult) -> Vec<String> {
    match &found.content[0] {
        kgent_tools::result::Content::Text(text) => text.lines().map(str::to_owned).collect(),
        kgent_tools::result::Content::File { .. } => Vec::new(),
    }
}

#[test]
fn temporary_names_are_not_made_and_strangers_are_shown() {
    let fixture = Fixture::new();
    let name = format!(".kgent-{}.tmp", "0".repeat(32));
    for path in [name.clone(), format!("in/{name}/x")] {
        assert_eq!(answer(&fixture.call("write_file", arguments("write_file", &path))), "invalid_args", "{path}");
    }
    fixture.lay(&name, File(INSIDE));
    let listed = visible(&fixture.call("list_files", json!({"hidden": true})));
    assert!(listed.contains(&name), "a file that is not ours is not hidden: {listed}");
}

#[test]
fn a_refusal_does_not_tell_whether_anything_is_there() {
    let setup = Setup {
        config: json!({
            "permissions": {"rules": [{"action": "*", "resource": "private/**", "effect": "deny"}]},
            "sandbox": {"hidden": ["unseen", "*.key"]},
        }),
        ..Setup::default()
    };
    let present = |name: &str| name.replace('?', "1");
    let absent = |name: &str| name.replace('?', "0");
    for (path, thing) in [
        ("../outside/secret?", None),
        ("{outside}/secret?", None),
        ("/etc/host?", None),
        ("private/a?", Some(File(CANARY))),
        ("private/d?/x", Some(File(CANARY))),
        ("a?.key", Some(File(CANARY))),
        ("unseen/a?", Some(File(CANARY))),
        ("unseen/d?/x", Some(File(CANARY))),
        ("out/secret?", None),
        ("folder/b?", None),
        ("dangling?", Some(Link("../outside/secret.txt"))),
        ("private/l?", Some(Link("../../outside/secret.txt"))),
    ] {
        for tool in TOOLS {
            let answers = [present(path), absent(path)].map(|sent| {
                let fixture = Fixture::with(&setup);
                std::fs::write(fixture.outside.join("secret1"), CANARY).unwrap();
                fixture.lay("out", Link("../outside"));
                fixture.lay("unseen/b1", File(CANARY));
                fixture.lay("folder", Link("unseen"));
                if path == "dangling?" {
                    // Both are links that lead out; only the target of one exists.
                    let target = if sent.ends_with('1') { "../outside/secret1" } else { "../outside/secret0" };
                    fixture.lay(&sent, Link(target));
                } else if let (Some(thing), true) = (thing, sent == present(path)) {
                    fixture.lay(&sent, thing);
                }
                let sent = fixture.fill(&sent);
                let result = fixture.call(tool, arguments(tool, &sent));
                assert!(!result.ok, "{tool} {sent}: {result:?}");
                visible(&result).replace(&sent, "PATH").replace(fixture.path().to_str().unwrap(), "TMP")
            });
            assert_eq!(answers[0], answers[1], "{tool} {path}");
        }
    }
}

#[test]
fn a_walk_tells_only_the_number_of_what_it_withholds() {
    let rules = json!([{"action": "*", "resource": "private/**", "effect": "deny"}]);
    let config = json!({"permissions": {"rules": rules}, "sandbox": {"hidden": ["unseen"]}});
    let mut answers = Vec::new();
    for content in [CANARY, "something else, and longer"] {
        let fixture = Fixture::with(&Setup { config: config.clone(), ..Setup::default() });
        fixture.lay("private/a.txt", File(content));
        fixture.lay("private/d", if content == CANARY { Directory } else { File("") });
        fixture.lay("unseen", if content == CANARY { Directory } else { File("") });
        for args in [
            json!({"pattern": CANARY_PATTERN}),
            json!({"pattern": CANARY_PATTERN, "include": "private/*"}),
            json!({"pattern": ".", "include": "unseen"}),
        ] {
            answers.push(visible(&fixture.call("grep_files", args)));
        }
        for args in [json!({"depth": 9}), json!({"depth": 9, "pattern": "private/*"}), json!({"pattern": "unseen*"})] {
            answers.push(visible(&fixture.call("list_files", args)));
        }
        if content == CANARY {
            fixture.lay("private/d/[k]", File(content));
        }
        for pattern in ["**", "private/*", "unseen*", "private/d/[k]", "././private/d/[k]", "/private//d/[k]"] {
            answers.push(visible(&fixture.call("glob_files", json!({"path": ".", "pattern": pattern}))));
        }
    }
    let (one, other) = answers.split_at(12);
    assert_eq!(one, other);
    assert!(one.iter().all(|text| !text.contains("private/a") && !text.contains("unseen\"")));
}

#[test]
fn what_a_write_was_refused_leaves_nothing_behind() {
    let rules = json!([{"action": "edit", "resource": "in/new/**", "effect": "deny"}]);
    let setup = Setup { config: json!({"permissions": {"rules": rules}}), ..Setup::default() };
    let fixture = Fixture::with(&setup);
    fixture.lay("way", Link("in/new/deep"));
    let before = tree(&fixture.workspace);
    for args in [
        json!({"path": "in/new/deep/x.txt", "content": WRITTEN}),
        json!({"path": "way/x.txt", "content": WRITTEN}),
        json!({"path": "other/deep/x.txt", "content": WRITTEN, "expected_hash": "b3:00000000000000000000000000000000"}),
        json!({"path": "top.txt/deep/x.txt", "content": WRITTEN}),
    ] {
        let result = fixture.call("write_file", args.clone());
        assert!(!result.ok, "{args}");
        assert_eq!(before.keys().collect::<Vec<_>>(), tree(&fixture.workspace).keys().collect::<Vec<_>>(), "{args}");
    }
}

#[test]
fn a_workspace_that_is_the_whole_file_system_still_holds_only_storage() {
    let dir = tempfile::tempdir().unwrap();
    let options =
        kgent_tools::context::RunOptions { workspace: Some("/".into()), ..kgent_tools::context::RunOptions::default() };
    let context = kgent_tools::context::RunContext::create(&dir.path().join("runs"), Some("r"), options).unwrap();
    let tools = crate::support::offer(&context);
    let ask = |tool: &str, path: &str| crate::support::call(&tools, None, tool, arguments(tool, path));
    std::fs::write(dir.path().join("a.txt"), INSIDE).unwrap();
    let file = dir.path().join("a.txt").to_str().unwrap().to_owned();
    for path in [file.as_str(), &file[1..]] {
        assert_eq!(ask("read_file", path).data.unwrap().to_value()["content"], json!(INSIDE));
    }
    for path in ["/proc/self/environ", "proc/self/status", "/proc/version", "/sys/kernel/uevent_seqnum"] {
        for (tool, expected) in expected(&SPECIAL) {
            assert_eq!(answer(&ask(tool, path)), expected, "{tool} {path}");
        }
    }
    for path in ["/proc/new.txt", "/proc/new/x.txt", "/sys/kernel/new/x.txt"] {
        assert_eq!(answer(&ask("write_file", path)), "not_regular_file", "{path}");
    }
    for path in ["/proc", "/proc/self", "/sys", "/dev/pts"] {
        for tool in ["list_files", "glob_files", "grep_files"] {
            assert_eq!(answer(&ask(tool, path)), "not_regular_file", "{tool} {path}");
        }
    }
}
