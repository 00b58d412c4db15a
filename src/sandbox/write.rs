//! Atomic writes: temporary files in the targets' own directories, then renames. After a crash each file is the old one
//! or the new one; after a failure every file is as it was, or the error says which is not.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustix::fs::{self, Advice, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use serde_json::json;

use super::attributes;
use super::dir::{Component, Dir, Version};
use super::target::{Target, Targets};
use super::{Gate, OpenFile, SandboxPath, content_hash};
use crate::error::{Code, ToolError};

/// How often an exchange is taken back while others keep replacing the name.
const MAX_TURNS: usize = 64;
/// Compared in one go, in bytes.
const BLOCK: usize = 128 * 1024;
const TEMP_PREFIX: &[u8] = b".kgent-";
const TEMP_SUFFIX: &[u8] = b".tmp";
const TEMP_LENGTH: usize = 7 + 32 + 4;

/// The temporary names that this process has in use; listings leave them out.
static LIVE: ArcSwapOption<Vec<Vec<u8>>> = ArcSwapOption::const_empty();

/// Whether `name` has the form of a temporary name; tools make none of that form.
pub(crate) fn is_temp_name(name: &[u8]) -> bool {
    name.len() == TEMP_LENGTH && name.starts_with(TEMP_PREFIX) && name.ends_with(TEMP_SUFFIX)
}

/// Whether `name` is a temporary file of this process.
pub(crate) fn is_live_temp(name: &[u8]) -> bool {
    is_temp_name(name) && LIVE.load().as_ref().is_some_and(|names| names.iter().any(|n| n == name))
}

/// A temporary name, and the file under it, which is removed when this is dropped unless nothing of ours is there.
struct Temp<'a> {
    dir: &'a Dir,
    name: Vec<u8>,
    empty: bool,
}

impl<'a> Temp<'a> {
    /// A name that nothing has.
    fn reserve(dir: &'a Dir) -> rustix::io::Result<Self> {
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let digits = format!("{:032x}", u128::from_ne_bytes(random));
        let name = [TEMP_PREFIX, digits.as_bytes(), TEMP_SUFFIX].concat();
        LIVE.rcu(|names| {
            let names = names.as_deref().cloned().unwrap_or_default();
            Some(Arc::new(names.into_iter().chain([name.clone()]).collect::<Vec<_>>()))
        });
        Ok(Self { dir, name, empty: true })
    }

    /// A new file under such a name.
    fn create(dir: &'a Dir, mode: u32) -> rustix::io::Result<(Self, OwnedFd)> {
        let mut temp = Self::reserve(dir)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = dir.open(temp.component()?, flags, Mode::from_raw_mode(mode))?;
        temp.empty = false;
        Ok((temp, fd))
    }

    fn component(&self) -> rustix::io::Result<Component<'_>> {
        Component::of(&self.name)
    }

    /// Which object is under the name, held open.
    fn hold(&self) -> rustix::io::Result<((u64, u64), OwnedFd)> {
        let fd = self.dir.open(self.component()?, OFlags::PATH, Mode::empty())?;
        let stat = fs::fstat(&fd)?;
        Ok(((stat.st_dev, stat.st_ino), fd))
    }

    /// Which object is under the name.
    fn identity(&self) -> rustix::io::Result<(u64, u64)> {
        self.dir.look(self.component()?).map(|look| look.identity)
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.empty {
            let _ = Component::of(&self.name).and_then(|name| self.dir.remove(name));
        }
        LIVE.rcu(|names| {
            let rest: Vec<Vec<u8>> =
                names.as_deref().into_iter().flatten().filter(|n| **n != self.name).cloned().collect();
            Some(Arc::new(rest))
        });
    }
}

/// What becomes of a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'s> {
    /// Which of the targets.
    pub(crate) target: usize,
    /// Its new content; `None` removes it.
    pub(crate) content: Option<&'s [u8]>,
    /// The content that was decided on: a file that holds anything else by then is left as it is, `stale`. `None`
    /// replaces whatever is there.
    pub(crate) decided_on: Option<&'s [u8]>,
    /// The target whose owner, mode and attributes a new file takes over.
    pub(crate) like: Option<usize>,
}

impl Targets<'_> {
    /// Does all steps or none, and answers which state of each file that leaves; `None` of one that is removed.
    pub(crate) fn commit(mut self, steps: &[Step<'_>], gate: &dyn Gate) -> Result<Vec<Option<Version>>, ToolError> {
        let mut approved = Vec::with_capacity(steps.len());
        for step in steps {
            approved.push(self.get(step.target)?.require_approved(step.decided_on, gate)?);
        }
        let mut staged = Vec::with_capacity(steps.len());
        for (step, approved) in steps.iter().zip(&approved) {
            let decided_on = step.decided_on.or(approved.as_deref());
            staged.push(self.stage(&Step { decided_on, ..*step }, gate)?);
        }
        gate.checkpoint()?;
        // What is removed goes last: until then a file that moves is there twice rather than not at all.
        let mut order: Vec<usize> = (0..staged.len()).collect();
        order.sort_by_key(|at| staged.get(*at).is_some_and(|one| one.written.is_none()));
        for (count, at) in order.iter().enumerate() {
            let Some(Err(error)) = staged.get_mut(*at).map(Staged::put) else { continue };
            let mut left = Vec::new();
            for at in order.iter().take(count).rev() {
                if let Some(Err(why)) = staged.get_mut(*at).map(Staged::take_back) {
                    left.push(why);
                }
            }
            return Err(if left.is_empty() { error } else { half_done(error, &left) });
        }
        let written: Vec<Option<Stat>> = staged.into_iter().map(|one| one.written).collect();
        for step in steps {
            if let Some(target) = self.all.get_mut(step.target) {
                target.made.keep();
            }
        }
        let mut versions = Vec::with_capacity(steps.len());
        for (step, written) in steps.iter().zip(&written) {
            let target = self.get(step.target)?;
            if target.sandbox.constraints.power_safe {
                let doing = "syncing the directory of";
                fs::fsync(&target.dir).map_err(|e| ToolError::io(&target.path.to_string(), doing, e))?;
            }
            versions.push(written.as_ref().map(|written| target.confirm(written)).transpose()?);
        }
        Ok(versions)
    }

    /// Writes the new file beside the old one.
    fn stage<'t>(&'t self, step: &Step<'t>, gate: &dyn Gate) -> Result<Staged<'t>, ToolError> {
        let target = self.get(step.target)?;
        let failed = |doing: &'static str| {
            let path = &target.path;
            move |errno| failed(path, doing, errno)
        };
        let Some(bytes) = step.content else {
            let temp = Temp::reserve(&target.dir).map_err(failed("removing"))?;
            return Ok(Staged { target, temp, written: None, file: None, decided_on: step.decided_on });
        };
        let model = match step.like {
            Some(like) => self.get(like)?,
            None => target,
        };
        let private = target.sandbox.mount(&target.path)?.spec.private;
        let mode = if model.current.is_some() || private { 0o600 } else { 0o666 };
        let (temp, fd) = Temp::create(&target.dir, mode).map_err(failed("writing"))?;
        for chunk in bytes.chunks(1 << 20) {
            gate.checkpoint()?;
            let mut rest = chunk;
            while !rest.is_empty() {
                let count = rustix::io::retry_on_intr(|| rustix::io::write(&fd, rest)).map_err(failed("writing"))?;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        if let Some(old) = &model.current {
            let from = model.open_raw().map_err(failed("keeping the attributes of"))?;
            attributes::keep(&from, old, &fd).map_err(|(doing, errno)| failed(doing)(errno))?;
        }
        if target.sandbox.constraints.power_safe {
            fs::fsync(&fd).map_err(failed("writing"))?;
        } else if target.current.is_some() && step.decided_on.is_some() {
            // ext4 starts to write a file back by itself where it replaces another, but not where it is exchanged with
            // one. This starts it, as `sync_file_range` would, and waits for nothing.
            let _ = fs::fadvise(&fd, 0, None, Advice::DontNeed);
        }
        let written = fs::fstat(&fd).map_err(failed("writing"))?;
        Ok(Staged { target, temp, written: Some(written), file: Some(fd), decided_on: step.decided_on })
    }
}

/// A step that is ready to be done: the new file is under the temporary name, and once it is done the old one.
struct Staged<'t> {
    target: &'t Target<'t>,
    temp: Temp<'t>,
    /// The new file; `None` where the step removes.
    written: Option<Stat>,
    /// Held open, so that no other file gets its number.
    #[expect(dead_code, reason = "held")]
    file: Option<OwnedFd>,
    decided_on: Option<&'t [u8]>,
}

impl Staged<'_> {
    fn name(&self) -> rustix::io::Result<Component<'_>> {
        self.target.name()
    }

    /// Moves the file under the temporary name to the name, which must be free.
    fn install(&self) -> rustix::io::Result<()> {
        let (temp, name) = (self.temp.component()?, self.name()?);
        match self.target.dir.rename(temp, name, RenameFlags::NOREPLACE) {
            // A link is not made over a name either.
            Err(errno) if is_missing(errno) => {
                self.target.dir.link(temp, name)?;
                self.target.dir.remove(temp)
            }
            other => other,
        }
    }

    /// Moves the file at the name to the temporary name, which nothing has.
    fn withhold(&self) -> rustix::io::Result<()> {
        let (temp, name) = (self.temp.component()?, self.name()?);
        match self.target.dir.rename(name, temp, RenameFlags::NOREPLACE) {
            Err(errno) if is_missing(errno) => self.target.dir.rename(name, temp, RenameFlags::empty()),
            other => other,
        }
    }

    /// Exchanges the new file and the old one. Where the file system cannot, as `guarantees` says, the old one is kept
    /// under another temporary name and replaced: what someone without our lock does between the two is lost.
    fn exchange(&mut self, old: &Stat, content: &[u8]) -> rustix::io::Result<()> {
        let target = self.target;
        let dir = &target.dir;
        match dir.rename(self.temp.component()?, self.target.name()?, RenameFlags::EXCHANGE) {
            Err(errno) if is_missing(errno) => {
                let mut kept = Temp::reserve(dir)?;
                dir.link(self.target.name()?, kept.component()?)?;
                kept.empty = false;
                if self.holds(&kept, old, content) {
                    dir.rename(self.temp.component()?, self.target.name()?, RenameFlags::empty())?;
                    self.temp.empty = true;
                    self.temp = kept;
                    return Ok(());
                }
                Err(Errno::BUSY)
            }
            other => other,
        }
    }

    fn put(&mut self) -> Result<(), ToolError> {
        let target = self.target;
        let path = &target.path;
        let changed = || stale(path, "was changed by someone else meanwhile");
        let removed = |doing: &'static str| {
            move |errno| match errno {
                Errno::NOENT => stale(path, "was removed by someone else meanwhile"),
                other => failed(path, doing, other),
            }
        };
        match (&target.current, self.written.is_some(), self.decided_on) {
            (None, true, _) => match self.install() {
                Ok(()) => self.temp.empty = true,
                Err(Errno::EXIST) => return Err(stale(path, "was created by someone else meanwhile")),
                Err(errno) => return Err(failed(path, "writing", errno)),
            },
            (Some(_), true, None) => {
                let (temp, name) = (self.temp.component(), self.name());
                let renamed = temp.and_then(|temp| self.target.dir.rename(temp, name?, RenameFlags::empty()));
                renamed.map_err(|errno| failed(path, "writing", errno))?;
                self.temp.empty = true;
            }
            // Writers that do not take our lock are seen by what they put in between: the file that is displaced must
            // be the one that was decided on, else it goes back.
            (Some(old), true, Some(content)) => match self.exchange(old, content) {
                Ok(()) if self.holds(&self.temp, old, content) => {}
                Ok(()) => {
                    return Err(match self.exchange_back() {
                        // Busy: it was changed once more, and stays as it was left.
                        Ok(()) | Err(Errno::BUSY) => changed(),
                        Err(errno) => failed(path, "putting back", errno),
                    });
                }
                Err(Errno::BUSY) => return Err(changed()),
                Err(errno) => return Err(removed("writing")(errno)),
            },
            (Some(old), false, decided_on) => {
                self.withhold().map_err(removed("removing"))?;
                self.temp.empty = false;
                if decided_on.is_some_and(|content| !self.holds(&self.temp, old, content)) {
                    self.put_back().map_err(|errno| failed(path, "putting back", errno))?;
                    return Err(changed());
                }
            }
            (None, false, _) => {}
        }
        Ok(())
    }

    /// Undoes what `put` did. What cannot be undone is left, and said: the path and why.
    fn take_back(&mut self) -> Result<(), (String, String)> {
        let shown = self.target.path.to_string();
        let done = match (&self.target.current, self.written.is_some()) {
            (None, true) => self.withdraw(),
            (Some(_), true) => self.exchange_back(),
            (Some(_), false) => self.put_back(),
            (None, false) => Ok(()),
        };
        done.map_err(|errno| {
            let why = match (errno, self.written.is_some()) {
                (Errno::EXIST, false) => {
                    let name = String::from_utf8_lossy(&self.temp.name).into_owned();
                    format!("was removed, and someone else has made it anew; the old file is kept beside it as {name}")
                }
                (Errno::BUSY, _) => "was changed, and by someone else after that: it is as they left it".to_owned(),
                (other, _) => format!("was changed, and cannot be put back: {}", std::io::Error::from(other)),
            };
            (shown, why)
        })
    }

    /// Removes a file that was made, if it is still ours.
    fn withdraw(&mut self) -> rustix::io::Result<()> {
        match self.withhold() {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        if self.ours(self.temp.identity()?) {
            self.temp.empty = false;
            return Ok(());
        }
        self.install()?;
        Err(Errno::BUSY)
    }

    /// Puts back a file that was removed.
    fn put_back(&mut self) -> rustix::io::Result<()> {
        // Whatever comes of it, the file is not lost.
        self.temp.empty = true;
        self.install()
    }

    /// Exchanges the new file for the old one. Where someone else has replaced the new one, theirs stays.
    fn exchange_back(&mut self) -> rustix::io::Result<()> {
        // Each file that is met is held open meanwhile, so that no other gets its number.
        let (mut inside, mut held) = self.temp.hold()?;
        let mut expected = None;
        for turn in 0..MAX_TURNS {
            match self.target.dir.rename(self.temp.component()?, self.name()?, RenameFlags::EXCHANGE) {
                Ok(()) => {}
                // Someone removed the name: that stays.
                Err(Errno::NOENT) => return Ok(()),
                Err(errno) if is_missing(errno) => {
                    if !self.ours(self.target.dir.look(self.name()?)?.identity) {
                        return Err(Errno::BUSY);
                    }
                    self.target.dir.rename(self.temp.component()?, self.name()?, RenameFlags::empty())?;
                    self.temp.empty = true;
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
            let (came, next) = self.temp.hold()?;
            let as_expected = match &expected {
                None => self.ours(came),
                Some((expected, _)) => came == *expected,
            };
            if as_expected {
                return if turn == 0 { Ok(()) } else { Err(Errno::BUSY) };
            }
            expected = Some((inside, held));
            (inside, held) = (came, next);
        }
        Err(Errno::BUSY)
    }

    fn ours(&self, identity: (u64, u64)) -> bool {
        self.written.as_ref().is_some_and(|s| (s.st_dev, s.st_ino) == identity)
    }

    /// Whether what is under a temporary name is the old file, with the content that was decided on.
    fn holds(&self, temp: &Temp<'_>, old: &Stat, content: &[u8]) -> bool {
        let opened = temp
            .component()
            .and_then(|name| self.target.dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()));
        let Ok(fd) = opened else { return false };
        let Ok(stat) = fs::fstat(&fd) else { return false };
        if (stat.st_dev, stat.st_ino) != (old.st_dev, old.st_ino) {
            return false;
        }
        let file = OpenFile::new(fd, &stat, self.target.path.clone());
        let mut buffer = vec![0; BLOCK.min(content.len() + 1)];
        let mut rest = content;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return rest.is_empty(),
                Ok(count) if rest.get(..count) == buffer.get(..count) => rest = rest.get(count..).unwrap_or_default(),
                _ => return false,
            }
        }
    }
}

impl Target<'_> {
    /// What the host approved must be there still: `content`, where that was read already, else what is answered.
    fn require_approved(&self, content: Option<&[u8]>, gate: &dyn Gate) -> Result<Option<Vec<u8>>, ToolError> {
        let Some(state) = gate.approved_state(&self.path) else { return Ok(None) };
        let read = match content {
            Some(_) => None,
            None => self.open_current()?.map(|file| file.read_all(file.size)).transpose()?,
        };
        let found = content.or(read.as_deref()).map_or_else(|| "absent".to_owned(), content_hash);
        if found == state { Ok(read) } else { Err(stale(&self.path, "was changed since the host approved the call")) }
    }

    /// Opens what is there for its attributes.
    fn open_raw(&self) -> rustix::io::Result<OwnedFd> {
        self.name().and_then(|name| self.dir.open(name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()))
    }

    /// The name, looked up anew from the mount's root, must lead to what was written: its parent may have been moved.
    fn confirm(&self, written: &Stat) -> Result<Version, ToolError> {
        let mount = self.sandbox.mount(&self.path)?;
        let found = mount.resolver.open(&mount.root, self.path.rel(), OFlags::PATH).and_then(fs::fstat);
        if let Ok(found) = found
            && (found.st_dev, found.st_ino) == (written.st_dev, written.st_ino)
        {
            return Ok(Version::of(&found));
        }
        let message = format!(
            "`{}` was written, but the name no longer leads to it: it was moved or replaced meanwhile",
            self.path
        );
        Err(ToolError::new(Code::Io, message)
            .hint("Read the file again before going on.")
            .details(json!({"done": true})))
    }
}

/// Whether the file system has no such rename.
fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS)
}

fn failed(path: &SandboxPath, doing: &str, errno: Errno) -> ToolError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => {
            ToolError::new(Code::Io, format!("{doing} `{path}` failed: no space left")).hint("Free space first.")
        }
        other => ToolError::io(&path.to_string(), doing, other),
    }
}

fn stale(path: &SandboxPath, what: &str) -> ToolError {
    ToolError::new(Code::Stale, format!("`{path}` {what}")).hint("Read it, then decide again.")
}

/// A failure after which some files are not as they were.
fn half_done(error: ToolError, left: &[(String, String)]) -> ToolError {
    let states: Vec<String> = left.iter().map(|(path, why)| format!("`{path}` {why}")).collect();
    let details: Vec<_> = left.iter().map(|(path, why)| json!({"path": path, "state": why})).collect();
    let message = format!("{}. Not all could be put back: {}", error.message, states.join("; "));
    ToolError { message, ..error }
        .hint("Read these files before going on.")
        .details(json!({"done": true, "not_put_back": details}))
}
