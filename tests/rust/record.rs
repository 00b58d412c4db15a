//! The records of a run: one whole line for each call, whoever else appends, whatever was left half done, and nothing
//! is done or told where it cannot be recorded.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::{Duration, Instant};

use kgent_tools::context::{CallInfo, RunContext};
use kgent_tools::record::reader::RunLog;
use serde_json::{Value, json};

use crate::support::Thing::File;
use crate::support::{CANARY, Fixture, answer, call, offer, visible};

const RECORDS: &str = "logs/tools.jsonl";

/// The sequence numbers of a log, which must rise by one from one.
fn sequence(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["seq"].as_u64().unwrap()).collect()
}

#[test]
fn handles_and_threads_append_whole_lines() {
    const HANDLES: usize = 3;
    const THREADS: usize = 4;
    const CALLS: usize = 40;
    let fixture = Fixture::new();
    let run = fixture.context.run();
    let handles: Vec<RunContext> = (0..HANDLES)
        .map(|_| RunContext::open(run.runs(), "r", run.options().clone()).expect("a run can be joined"))
        .collect();
    std::thread::scope(|scope| {
        for (handle, context) in handles.iter().enumerate() {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let tools = offer(context);
                    for n in 0..CALLS {
                        let info = CallInfo { call_id: Some(format!("{handle}-{thread}-{n}")), ..CallInfo::default() };
                        let context = context.for_call(info);
                        let args = match n % 3 {
                            0 => ("read_file", json!({"path": "top.txt"})),
                            1 => ("read_file", json!({"path": "../x".repeat(1 + n * 20)})),
                            _ => {
                                ("write_file", json!({"path": format!("in/{handle}"), "content": "x".repeat(n * 900)}))
                            }
                        };
                        call(&tools, Some(&context), args.0, args.1);
                    }
                });
            }
        }
    });
    let calls = HANDLES * THREADS * CALLS;
    let records = fixture.log_lines(RECORDS);
    assert_eq!(sequence(&records), (1..=calls as u64).collect::<Vec<_>>());
    let ids: BTreeSet<&str> = records.iter().map(|r| r["id"].as_str().unwrap()).collect();
    let call_ids: Vec<&str> = records.iter().map(|r| r["call_id"].as_str().unwrap()).collect();
    assert_eq!((ids.len(), call_ids.iter().collect::<BTreeSet<_>>().len()), (calls, calls));
    for handle in 0..HANDLES {
        for thread in 0..THREADS {
            let mine = call_ids.iter().filter(|id| id.starts_with(&format!("{handle}-{thread}-")));
            let expected = (0..CALLS).map(|n| format!("{handle}-{thread}-{n}"));
            assert!(mine.map(|id| (*id).to_owned()).eq(expected), "a writer's own order was lost");
        }
    }
    let events = fixture.log_lines("events.jsonl");
    assert_eq!(sequence(&events), (1..=events.len() as u64).collect::<Vec<_>>());
    for (kind, count) in [("run.created", 1), ("tool.started", calls / CALLS * 13)] {
        assert_eq!(events.iter().filter(|e| e["type"] == kind).count(), count, "{kind}");
    }
    assert_eq!(
        fixture.log_lines("logs/errors.jsonl").len(),
        records.iter().filter(|r| r["status"] != "completed").count()
    );
}

#[test]
fn every_call_is_one_line_within_bounds() {
    let fixture = Fixture::new();
    let long = "n".repeat(100_000);
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let odd = "\u{2028}\u{2029}\u{85}\u{1b}[2J\r\n\u{202e}";
    let calls: Vec<(&str, Value, &str)> = vec![
        ("read_file", json!({"path": "../x"}), "outside_sandbox"),
        ("read_file", json!({"path": "a\0b"}), "invalid_args"),
        ("read_file", json!({"path": odd}), "not_found"),
        ("read_file", json!(7), "invalid_args"),
        ("read_file", json!("{\"path\": \"top.txt\"}"), "ok"),
        ("read_file", json!(format!("{{\"path\": {deep}}}")), "invalid_args"),
        ("read_file", json!({"path": "top.txt", "extra": "x".repeat(300_000)}), "invalid_args"),
        ("read_file", json!({"path": "x".repeat(300_000)}), "invalid_args"),
        ("write_file", json!({"path": "large", "content": "x".repeat(2_000_000)}), "ok"),
        ("grep_files", json!({"pattern": "(".repeat(4000)}), "invalid_pattern"),
        ("no_such_tool", json!({}), "unknown_tool"),
        (&long, json!({}), "unknown_tool"),
    ];
    for (at, (tool, args, expected)) in calls.iter().enumerate() {
        let result = fixture.call_as(&odd.repeat(at * 1000), tool, args.clone());
        assert_eq!(answer(&result), *expected, "call {at}: {result:?}");
    }
    let lines = fixture.log_lines(RECORDS);
    let codes: Vec<&str> = lines.iter().map(|line| line["error"]["code"].as_str().unwrap_or("ok")).collect();
    assert_eq!(codes, calls.iter().map(|(.., code)| *code).collect::<Vec<_>>());
    let all = fixture.logs();
    assert!(all.split('\n').all(|line| line.len() < 64 * 1024));
    assert!(all.chars().all(|c| c == '\n' || !c.is_control() && !['\u{2028}', '\u{2029}'].contains(&c)));
}

#[test]
fn a_torn_tail_is_closed_off_and_nothing_whole_is_lost() {
    let whole = br#"{"v":1,"seq":7,"id":"whole"}"#;
    for (tail, kept, next) in [
        (&b"{\"v\":1,\"seq\":2,\"id\":\"ha"[..], false, 2),
        (b"{", false, 2),
        (b"\xe2\x82", false, 2),
        (b"\0\0\0\0\0\0\0\0", false, 2),
        (&whole[..], true, 8),
        (b"{\"v\":1,\"seq\":99999999999999999999,\"id\":\"damage\"}", false, 2),
        (b"{\"v\":1,\"seq\":9007199254740993,\"id\":\"damage\"}", false, 2),
    ] {
        let shown = tail.escape_ascii().to_string();
        let fixture = Fixture::new();
        fixture.call("read_file", json!({"path": "top.txt"}));
        let before = fixture.log(RECORDS);
        append(&fixture, RECORDS, tail);
        assert_eq!(answer(&fixture.call("read_file", json!({"path": "top.txt"}))), "ok", "{shown}");
        let after = fixture.log(RECORDS);
        let rest = after.strip_prefix([&before, tail, b"\n"].concat().as_slice()).expect("what was there stays");
        let record: Value = serde_json::from_slice(rest).expect("then one record");
        assert_eq!((record["seq"].as_u64(), record["tool"].as_str()), (Some(next), Some("read_file")), "{shown}");
        let torn: Vec<Value> = fixture.log_lines("events.jsonl");
        let torn: Vec<&Value> = torn.iter().filter(|e| e["type"] == "log.torn").map(|e| &e["data"]).collect();
        assert_eq!(torn, [&json!({"log": RECORDS, "at": before.len()})], "{shown}");
        // Reading back gives the whole lines, the one that only lacked its newline among them.
        let lines = fixture.context.run().read(RunLog::Records).unwrap().map(Result::unwrap);
        assert_eq!(lines.filter(|line| line["id"] == "whole").count(), usize::from(kept), "{shown}");
        // A second handle goes on from there.
        let run = fixture.context.run();
        let context = RunContext::open(run.runs(), "r", run.options().clone()).unwrap();
        let tools = offer(&context);
        call(&tools, None, "read_file", json!({"path": "top.txt"}));
        let last = fixture.log(RECORDS);
        let last: Value = serde_json::from_slice(last.split(|b| *b == b'\n').rev().nth(1).unwrap()).unwrap();
        assert_eq!(last["seq"], json!(next + 1), "{shown}");
    }
}

#[test]
fn a_torn_tail_in_any_of_the_logs_is_closed_off() {
    for log in ["events.jsonl", "logs/errors.jsonl"] {
        let fixture = Fixture::new();
        fixture.call("read_file", json!({"path": "absent"}));
        append(&fixture, log, b"{\"v\":1,\"se");
        fixture.call("read_file", json!({"path": "absent"}));
        let bytes = fixture.log(log);
        let broken =
            bytes.split(|b| *b == b'\n').filter(|l| !l.is_empty() && serde_json::from_slice::<Value>(l).is_err());
        assert_eq!(broken.count(), 1, "{log}");
        assert!(String::from_utf8(fixture.log("events.jsonl")).unwrap().contains("log.torn"), "{log}");
    }
}

#[test]
fn a_log_that_was_replaced_stops_writes_and_withholds_reads() {
    type Damage = fn(&std::path::Path);
    let damages: [(&str, Damage); 5] = [
        ("removed", |log| std::fs::remove_file(log).unwrap()),
        ("moved away", |log| std::fs::rename(log, log.with_extension("old")).unwrap()),
        ("replaced by a copy", |log| {
            std::fs::copy(log, log.with_extension("new")).unwrap();
            std::fs::rename(log.with_extension("new"), log).unwrap();
        }),
        ("replaced by a link", |log| {
            std::fs::rename(log, log.with_extension("old")).unwrap();
            std::os::unix::fs::symlink(log.with_extension("old"), log).unwrap();
        }),
        ("hard-linked", |log| std::fs::hard_link(log, log.with_extension("second")).unwrap()),
    ];
    for log in [RECORDS, "events.jsonl"] {
        for (what, damage) in damages {
            let fixture = Fixture::new();
            fixture.lay("in/canary", File(CANARY));
            damage(&fixture.run_folder().join(log));
            let written = fixture.call("write_file", json!({"path": "new/x.txt", "content": "x"}));
            let read = fixture.call("read_file", json!({"path": "in/canary"}));
            let codes = (answer(&written), answer(&read));
            assert_eq!(codes, ("log_unavailable", "log_unavailable"), "{log} {what}: {written:?}");
            assert!(!visible(&read).contains(CANARY), "{log} {what}: unrecorded content was told");
            let done = fixture.workspace.join("new/x.txt").exists();
            let said = written.error.unwrap().details.map_or(json!(false), |d| d["done"].clone());
            assert_eq!(json!(done), said, "{log} {what}: what was done is not what was said");
            assert!(!done || log == RECORDS, "{log} {what}: done although its start is not on record");
        }
    }
}

#[test]
fn a_lock_that_others_hold_is_waited_for_a_bounded_time() {
    let fixture = Fixture::new();
    let logs = std::fs::File::open(fixture.run_folder().join("logs")).unwrap();
    logs.lock().unwrap();
    let start = Instant::now();
    let result = fixture.call("write_file", json!({"path": "new.txt", "content": "x"}));
    assert_eq!(answer(&result), "log_unavailable");
    assert!((4..20).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    assert!(!fixture.workspace.join("new.txt").exists());
    logs.unlock().unwrap();
    assert_eq!(answer(&fixture.call("write_file", json!({"path": "new.txt", "content": "x"}))), "ok");
}

#[test]
fn a_lock_on_the_targets_folder_is_waited_for_a_bounded_time() {
    let fixture = Fixture::new();
    let folder = std::fs::File::open(fixture.workspace.join("in")).unwrap();
    folder.lock().unwrap();
    let context = fixture.context.for_call(CallInfo { timeout_s: Some(0.5), ..CallInfo::default() });
    let tools = offer(&context);
    let start = Instant::now();
    let result = call(&tools, None, "write_file", json!({"path": "in/a.txt", "content": "x"}));
    assert_eq!(answer(&result), "timeout");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert_eq!(answer(&fixture.call("read_file", json!({"path": "in/a.txt"}))), "ok");
}

fn append(fixture: &Fixture, log: &str, bytes: &[u8]) {
    let path = fixture.run_folder().join(log);
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}
