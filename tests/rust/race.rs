//! Another process exchanges directories, files and links under the tools' hands, as fast as it can. No call escapes,
//! none gives a byte that is denied, none panics, none hangs, and what was out of reach is untouched afterwards.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kgent_tools::result::ToolResult;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, mknodat, openat, renameat, renameat_with, statat, symlinkat,
};
use serde_json::{Value, json};

use crate::support::Thing::{Directory, Fifo, File, Link};
use crate::support::{CANARY, CANARY_PATTERN, Fixture, INSIDE, Setup, Thing, answer, descriptors, tree, visible};

/// How many calls are made, unless the variable says another number.
const OPERATIONS: usize = 50_000;
const OPERATIONS_VARIABLE: &str = "KGENT_ATTACK_OPERATIONS";
/// Where the attacking process does its work.
const GROUND_VARIABLE: &str = "KGENT_ATTACK_GROUND";
/// The calls that one run records.
const ROUND: usize = 25_000;
const THREADS: usize = 2;
/// How long all threads together may make no progress.
const HANG: Duration = Duration::from_secs(60);
const WRITTEN: &str = "WRITTEN\n";

/// What is exchanged: a directory, and two names in it.
const EXCHANGES: &[(&str, &str, &str)] = &[
    ("", "d", "d.out"),
    ("", "e", "e.absolute"),
    ("", "g", "g.private"),
    ("", "h", "h.git"),
    ("", "i", "i.link"),
    ("", "v", "v.vendor"),
    ("", "r", "r.runs"),
    ("", "w", "w.inside"),
    ("", "deep", "deep.out"),
    ("n", "m", "m.out"),
    ("j", "f", "f.out"),
    ("k", "f", "f.private"),
    ("p", "f", "pipe"),
    ("q", "f", "folder"),
    ("s", "a", "b"),
];

/// What lies there: the names in `EXCHANGES`, what tools may not reach, and below `deep` more levels than a walk holds.
const GROUND: &[(&str, Thing<'_>)] = &[
    ("../outside/twin/f", File(CANARY)),
    ("../outside/twin/sub/f", File(CANARY)),
    ("private/f", File(CANARY)),
    ("private/sub/f", File(CANARY)),
    ("unseen/f", File(CANARY)),
    ("unseen/sub/f", File(CANARY)),
    (".git/f", File("GIT\n")),
    (".git/sub/f", File("GIT\n")),
    ("vendor/f", File("VENDOR\n")),
    ("d/f", File(INSIDE)),
    ("d/sub/f", File(INSIDE)),
    ("d.out", Link("../outside/twin")),
    ("e/f", File(INSIDE)),
    ("e/sub/f", File(INSIDE)),
    ("e.absolute", Link("{outside}/twin")),
    ("g/f", File(INSIDE)),
    ("g/sub/f", File(INSIDE)),
    ("g.private", Link("private")),
    ("h/f", File(INSIDE)),
    ("h/sub/f", File(INSIDE)),
    ("h.git", Link(".git")),
    ("i/f", File(INSIDE)),
    ("i/sub/f", File(INSIDE)),
    ("i.link", Link("unseen")),
    ("v/f", File(INSIDE)),
    ("v.vendor", Link("{ws}/vendor")),
    ("r/events.jsonl", File(INSIDE)),
    ("r.runs", Link("runs/r")),
    ("w/f", File(INSIDE)),
    ("w.inside", Link("d")),
    ("deep.out", Link("../outside/deep")),
    ("n/m/f", File(INSIDE)),
    ("n/m/sub/f", File(INSIDE)),
    ("n/m.out", Link("../../outside/twin")),
    ("j/f", File(INSIDE)),
    ("j/f.out", Link("../../outside/twin/f")),
    ("k/f", File(INSIDE)),
    ("k/f.private", Link("../private/f")),
    ("p/f", File(INSIDE)),
    ("p/pipe", Fifo),
    ("q/f", File(INSIDE)),
    ("q/folder/f", File(INSIDE)),
    ("s/a/b/c/f", File(INSIDE)),
    ("s/b", Directory),
];

/// The names that the calls ask for; half of them lead through what is being exchanged.
const PATHS: &[&str] = &[
    "d/f",
    "d/sub/f",
    "d/new",
    "d/new.folder/f",
    "d/../d/f",
    "d.out/f",
    "e/f",
    "e/sub/f",
    "e/new",
    "e.absolute/sub/f",
    "g/f",
    "g/sub/f",
    "g/new",
    "g.private/f",
    "h/f",
    "h/sub/f",
    "h/new",
    "h/new.folder/f",
    "h.git/f",
    "i/f",
    "i/sub/f",
    "i.link/f",
    "v/f",
    "v/new",
    "v.vendor/f",
    "r/events.jsonl",
    "r.runs/events.jsonl",
    "w/f",
    "w.inside/f",
    "w/../d/f",
    "n/m/f",
    "n/m/sub/f",
    "n/m/new.folder/f",
    "n/m/sub/../../m/f",
    "n/m.out/f",
    "j/f",
    "j/f.out",
    "k/f",
    "k/f.private",
    "p/f",
    "p/pipe",
    "q/f",
    "q/f/f",
    "q/folder/f",
    "s/a/b/c/f",
    "s/a/b/../b/c/f",
    "s/b/b/c/../../../a/f",
    "deep/0/0/0/z",
    "deep/0/../0/z",
];

/// The answers that a call may get in all this.
const EXPECTED: &[&str] = &[
    "ok",
    "not_found",
    "not_regular_file",
    "is_directory",
    "not_a_directory",
    "denied",
    "outside_sandbox",
    "read_only",
    "stale",
    "io",
    "no_match",
    "patch_no_match",
];

#[test]
fn no_exchange_under_a_call_leads_it_out() {
    let wanted = std::env::var(OPERATIONS_VARIABLE).ok().map_or(OPERATIONS, |n| n.parse().unwrap());
    let mut done = 0;
    while done < wanted {
        let count = (wanted - done).min(ROUND);
        round(count, done);
        done += count;
    }
}

fn round(count: usize, seed: usize) {
    let config = json!({
        "permissions": {"rules": [{"action": "*", "resource": "private/**", "effect": "deny"}]},
        "sandbox": {"hidden": ["unseen"], "read_only": ["vendor/**"]},
        "limits": {"timeout_s": 30},
    });
    let fixture = Fixture::with(&Setup { runs: "ws/runs", config, lay: GROUND, in_memory: true, ..Setup::default() });
    let (mut inside, mut outside) = (String::from("deep"), String::from("../outside/deep"));
    for _ in 0..60 {
        (inside, outside) = (inside + "/0", outside + "/0");
        fixture.lay(format!("{inside}/z"), File(INSIDE));
        fixture.lay(format!("{outside}/z"), File(CANARY));
        fixture.lay(format!("{outside}/{CANARY}"), File(CANARY));
    }
    let out_of_reach = || {
        let kept = ["../outside", "../ws-evil", "private", "unseen", ".git", "vendor"];
        kept.map(|name| tree(&fixture.workspace.join(name)))
    };
    let before = out_of_reach();
    let held = descriptors(fixture.path());
    let attacker = Attacker::start(&fixture.workspace);
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fixture, tally) = (&fixture, &tally);
            let mut dice = Dice(1 + (seed + thread) as u64);
            scope.spawn(move || {
                let _stop = StopOnPanic(&tally.over);
                while !tally.over.load(Ordering::Relaxed) && tally.started.fetch_add(1, Ordering::Relaxed) < count {
                    let (tool, args) = dice.call();
                    let result = fixture.call(tool, args.clone());
                    hold(tool, &args, &result);
                    tally.add(tool, &result);
                }
            });
        }
        tally.watch(count);
    });
    drop(attacker);
    assert_eq!(out_of_reach(), before, "what was out of reach changed");
    assert_eq!(descriptors(fixture.path()), held, "descriptors were left open");
    assert_eq!(lines(&fixture.log("logs/tools.jsonl")), count, "one record for each call");
    let logs = fixture.logs();
    assert!(!logs.contains(CANARY), "a log holds what is out of reach");
    assert!(!logs.contains(WRITTEN.trim_end()), "a log holds what was written");
    // Attack and work did meet, or this shows nothing.
    for (what, number) in
        [("reads", &tally.reads), ("writes", &tally.writes), ("walks", &tally.walks), ("refusals", &tally.refusals)]
    {
        assert!(number.load(Ordering::Relaxed) > count / 100, "only {number:?} {what} of {count} calls");
    }
}

/// What must hold of each result.
fn hold(tool: &str, args: &Value, result: &ToolResult) {
    assert!(EXPECTED.contains(&answer(result)), "{tool} {args}: {result:?}");
    let text = visible(result);
    assert!(!text.contains(CANARY), "{tool} {args} gave what is out of reach: {text}");
    assert!(!text.contains("run.created"), "{tool} {args} gave the run's own events: {text}");
    assert!(!text.contains("unseen/"), "{tool} {args} named what is hidden: {text}");
    if tool == "read_file" && result.ok {
        let content = result.data.as_ref().unwrap().to_value()["content"].as_str().unwrap().to_owned();
        assert!([INSIDE, WRITTEN, "GIT\n", "VENDOR\n"].contains(&content.as_str()), "{args} gave {content:?}");
    }
}

fn lines(bytes: &[u8]) -> usize {
    bytes.split(|b| *b == b'\n').count() - 1
}

/// The calls, in an order that a seed gives.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % sides
    }

    /// A line that may be there, and another for it.
    fn change(&mut self) -> (&'static str, &'static str) {
        let lines = (INSIDE.trim_end(), WRITTEN.trim_end());
        if self.roll(2) == 0 { lines } else { (lines.1, lines.0) }
    }

    fn call(&mut self) -> (&'static str, Value) {
        let path = PATHS[self.roll(PATHS.len())];
        let folder = path.rsplit_once('/').map_or(".", |(folder, _)| folder);
        match self.roll(1000) {
            0 => ("list_files", json!({"path": ".", "depth": 256, "hidden": true})),
            1..3 => ("grep_files", json!({"pattern": format!("INSIDE|{CANARY_PATTERN}"), "hidden": true})),
            3 => ("glob_files", json!({"pattern": "**/{f,z}", "hidden": true})),
            4..50 => ("list_files", json!({"path": folder, "depth": 9})),
            50..80 => ("glob_files", json!({"path": folder, "pattern": "**"})),
            80..120 => ("grep_files", json!({"path": folder, "pattern": "E"})),
            120..150 => ("grep_files", json!({"path": path, "pattern": "E"})),
            150..400 => ("write_file", json!({"path": path, "content": WRITTEN})),
            400..500 => {
                let (old, new) = self.change();
                ("edit_file", json!({"path": path, "edits": [{"old_text": old, "new_text": new}]}))
            }
            500..550 => {
                let (old, new) = self.change();
                let patch = format!("*** Begin Patch\n*** Update File: {path}\n-{old}\n+{new}\n*** End Patch");
                ("apply_patch", json!({"patch": patch}))
            }
            _ => ("read_file", json!({"path": path})),
        }
    }
}

/// How far the calls have come.
#[derive(Default)]
struct Tally {
    started: AtomicUsize,
    ended: AtomicUsize,
    over: AtomicBool,
    reads: AtomicUsize,
    writes: AtomicUsize,
    walks: AtomicUsize,
    refusals: AtomicUsize,
}

impl Tally {
    fn add(&self, tool: &str, result: &ToolResult) {
        let number = match (tool, answer(result)) {
            ("read_file", "ok") => &self.reads,
            ("write_file" | "edit_file" | "apply_patch", "ok") => &self.writes,
            (_, "ok") => &self.walks,
            _ => &self.refusals,
        };
        number.fetch_add(1, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for the end. A call that hangs could not be waited for, so it ends the whole process.
    fn watch(&self, count: usize) {
        let (mut seen, mut since) = (0, Instant::now());
        while seen < count && !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            let now = self.ended.load(Ordering::Relaxed);
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            if since.elapsed() > HANG {
                // Nothing is printed by a test that cannot end, unless it goes round the test's own capture.
                std::io::stderr().write_all(b"a call hangs under attack\n").unwrap();
                std::process::abort();
            }
        }
    }
}

/// Ends the other threads where one fails.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// The attacking process; it ends with this value.
struct Attacker(Child);

impl Attacker {
    fn start(workspace: &Path) -> Self {
        let this = std::env::current_exe().unwrap();
        let mut command = Command::new(this);
        command.args(["--exact", "race::the_other_process", "--ignored"]).env(GROUND_VARIABLE, workspace);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        let ended = self.0.try_wait().unwrap();
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        assert!(ended.is_none() || std::thread::panicking(), "the attack ended early: {ended:?}");
    }
}

#[test]
#[ignore = "started by the test above, as a process of its own"]
fn the_other_process() {
    let Some(ground) = std::env::var_os(GROUND_VARIABLE) else { return };
    let parent = rustix::process::getppid();
    // Each directory is held: a name through an exchanged link would lead the attack itself out.
    let held: Vec<(OwnedFd, &str, &str)> = EXCHANGES
        .iter()
        .map(|(folder, one, other)| {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            (openat(CWD, Path::new(&ground).join(folder), flags, Mode::empty()).unwrap(), *one, *other)
        })
        .collect();
    let mut dice = Dice(7);
    while rustix::process::getppid() == parent {
        let at = dice.roll(held.len());
        let (folder, one, other) = &held[at];
        for _ in 0..=dice.roll(8) {
            renameat_with(folder, *one, folder, *other, RenameFlags::EXCHANGE).unwrap();
        }
        // A write may have replaced the link or the pipe: then it is laid again.
        let is_file = |name: &str| {
            let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        };
        if dice.roll(64) == 0 && is_file(one) && is_file(other) {
            match *other {
                "pipe" => mknodat(folder, "again", FileType::Fifo, Mode::RWXU, 0).unwrap(),
                "f.out" => symlinkat("../../outside/twin/f", folder, "again").unwrap(),
                _ => symlinkat("../private/f", folder, "again").unwrap(),
            }
            renameat(folder, "again", folder, *other).unwrap();
        }
    }
}
