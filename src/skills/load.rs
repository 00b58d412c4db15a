//! Loading: a skill's files are copied into the run, once, and counted against the run's budget. What was loaded stands
//! in `archive/skills.jsonl`, for every thread and process of the run.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::{SKILL_FILE, SkillRegistry, Sound, read_skill_file};
use crate::context::Run;
use crate::error::{Code, ToolError};
use crate::record::archive::{self, Archive};
use crate::sandbox::dir::{Component, Dir, Kind};
use crate::sandbox::host::{self, Unread};
use crate::sandbox::{Gate, SandboxPath};

/// The list of what was loaded.
const STATE: &str = "skills.jsonl";
/// The most files of one skill.
const MAX_FILES: usize = 2000;
/// The most bytes of one skill's files.
const MAX_BYTES: u64 = 1 << 26;
/// The deepest folder of a skill.
const MAX_DEPTH: usize = 16;

/// A line of the list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) hash: String,
    pub(crate) characters: usize,
}

/// A loaded skill.
#[derive(Debug)]
pub(crate) struct Loaded<'a> {
    pub(crate) sound: &'a Sound,
    pub(crate) hash: String,
    pub(crate) body: String,
    /// Its files in the run, as sandbox paths.
    pub(crate) files: Vec<SandboxPath>,
    /// Links, special files and what was over the limits; they stayed behind.
    pub(crate) left_behind: usize,
    /// Whether the run had not loaded it before.
    pub(crate) first: bool,
}

/// The skills that the run has loaded, in that order.
pub(crate) fn loaded(run: &Run) -> Result<Vec<Entry>, ToolError> {
    let mut entries: Vec<Entry> = Vec::new();
    archive::each_line(run.journal.folder(), STATE, |_, line| {
        let entry = line.and_then(|line| serde_json::from_slice::<Entry>(line).ok());
        entries.extend(entry.filter(|entry| entries.iter().all(|known| known.id != entry.id)));
        true
    })
    .map_err(|errno| ToolError::io("the list of loaded skills", "reading", errno))?;
    Ok(entries)
}

impl SkillRegistry {
    /// Loads a skill into the run. A second time it is served again and counts nothing.
    pub(crate) fn load(&self, id: &str, run: &Run, gate: &dyn Gate) -> Result<Loaded<'_>, ToolError> {
        let (skill, sound) = self.usable(id)?;
        let root = self.roots.get(skill.root).ok_or_else(crate::settle::internal)?;
        let (folder, bytes) = Component::of(id.as_bytes())
            .and_then(|name| root.dir.open_dir(name))
            .map_err(|_| stale(id))
            .and_then(|folder| {
                // It could be read when it was found: whatever fails now has changed.
                let bytes = read_skill_file(&folder).map_err(|broken| stale(id).cause(broken.fault.reason))?;
                Ok((folder, bytes))
            })?;
        let hash = blake3::hash(&bytes);
        if *hash.as_bytes() != sound.hash {
            return Err(stale(id));
        }
        let hash = format!("b3:{}", hash.to_hex().get(..32).unwrap_or_default());
        let (first, left_behind) = bring_in(id, &hash, sound, (&folder, &bytes), run, gate)?;
        let body = bytes.get(sound.body_at..).unwrap_or_default();
        let path = run.sandbox.parse(&format!("skills/{id}"))?;
        let mut files = Vec::new();
        let copy = run.journal.folder().folder("skills").and_then(|skills| skills.open_dir(component(id)?));
        copy.and_then(|copy| list(&copy, &path, &mut files)).map_err(|e| ToolError::io("skills", "listing", e))?;
        Ok(Loaded { sound, hash, body: String::from_utf8_lossy(body).into_owned(), files, left_behind, first })
    }
}

fn stale(id: &str) -> ToolError {
    ToolError::new(Code::Stale, format!("the skill `{id}` changed since the skills were looked for"))
        .hint("Go on without it, or tell the user.")
}

fn component(id: &str) -> rustix::io::Result<Component<'_>> {
    Component::of(id.as_bytes())
}

/// Copies the skill into the run and counts it, unless that was done before. Answers whether it was not, and how many
/// entries stayed behind.
fn bring_in(
    id: &str,
    hash: &str,
    sound: &Sound,
    (folder, skill_file): (&Dir, &[u8]),
    run: &Run,
    gate: &dyn Gate,
) -> Result<(bool, usize), ToolError> {
    let failed = |what: &'static str| move |errno: Errno| ToolError::io(what, "writing", errno);
    let archive = Archive::lock(run.journal.folder()).map_err(failed("the list of loaded skills"))?;
    let before = loaded(run)?;
    if let Some(entry) = before.iter().find(|entry| entry.id == id) {
        return if entry.hash == hash { Ok((false, 0)) } else { Err(stale(id)) };
    }
    let config = &run.options().config.skills;
    let skills_left = config.max_skills.saturating_sub(before.len());
    let used: usize = before.iter().map(|entry| entry.characters).sum();
    let characters_left = config.max_characters.saturating_sub(used);
    if skills_left == 0 || sound.characters > characters_left {
        return Err(ToolError::new(
            Code::SkillBudgetExceeded,
            format!(
                "`{id}` has {} characters; this run may load {skills_left} more of {} skills, with {characters_left} \
                 more of {} characters",
                sound.characters, config.max_skills, config.max_characters
            ),
        )
        .hint("Work with the skills that are loaded; they can be loaded again.")
        .details(serde_json::json!({
            "skills_left": skills_left,
            "characters_left": characters_left,
            "loaded": before.iter().map(|entry| &entry.id).collect::<Vec<_>>(),
        })));
    }
    let target = run.journal.folder().folder("skills").and_then(|skills| made(&skills, component(id)?));
    let target = target.map_err(failed("skills"))?;
    let mut copy = Copy { gate, files: 0, bytes: 0, left_behind: 0 };
    copy.folder(folder, &target, 0)?;
    Component::of(SKILL_FILE.as_bytes())
        .and_then(|name| host::write_file(&target, name, skill_file))
        .map_err(failed("skills"))?;
    let entry = Entry { id: id.to_owned(), hash: hash.to_owned(), characters: sound.characters };
    let line = serde_json::to_string(&entry).map_err(|_| crate::settle::internal())?;
    let sync = run.options().config.power_safe();
    archive.append(STATE, &line, sync).map_err(failed("the list of loaded skills"))?;
    Ok((true, copy.left_behind))
}

fn made(parent: &Dir, name: Component<'_>) -> rustix::io::Result<Dir> {
    match parent.make_dir(name, 0o700) {
        Ok(()) | Err(Errno::EXIST) => parent.open_dir(name),
        Err(errno) => Err(errno),
    }
}

struct Copy<'a> {
    gate: &'a dyn Gate,
    files: usize,
    bytes: u64,
    left_behind: usize,
}

impl Copy<'_> {
    /// Copies regular files and folders; no link is followed and nothing else is opened.
    fn folder(&mut self, from: &Dir, to: &Dir, depth: usize) -> Result<(), ToolError> {
        let failed = |errno: Errno| ToolError::io("skills", "copying", errno);
        let entries = match from.entries(MAX_FILES) {
            Err(Errno::TOOBIG) => {
                self.left_behind += MAX_FILES;
                return Ok(());
            }
            other => other.map_err(failed)?,
        };
        for entry in entries {
            self.gate.checkpoint()?;
            let name = Component::of(&entry.name).map_err(failed)?;
            let fits = self.files < MAX_FILES && depth < MAX_DEPTH && entry.name != b".git";
            match entry.kind {
                Kind::Directory if fits => match from.open_dir(name) {
                    Ok(folder) => self.folder(&folder, &made(to, name).map_err(failed)?, depth + 1)?,
                    Err(_) => self.left_behind += 1,
                },
                Kind::File if fits => match host::read_entry(from, name, MAX_BYTES - self.bytes) {
                    Ok(bytes) => {
                        host::write_file(to, name, &bytes).map_err(failed)?;
                        self.files += 1;
                        self.bytes += bytes.len() as u64;
                    }
                    Err(Unread::Is(_) | Unread::TooLarge | Unread::Failed(_)) => self.left_behind += 1,
                },
                _ => self.left_behind += 1,
            }
        }
        Ok(())
    }
}

/// The files of a copied folder, as sandbox paths.
fn list(folder: &Dir, path: &SandboxPath, files: &mut Vec<SandboxPath>) -> rustix::io::Result<()> {
    for entry in folder.entries(MAX_FILES)? {
        let path = path.join(&entry.name);
        match entry.kind {
            Kind::Directory => list(&folder.open_dir(Component::of(&entry.name)?)?, &path, files)?,
            Kind::File if entry.name != SKILL_FILE.as_bytes() => files.push(path),
            _ => {}
        }
    }
    Ok(())
}
