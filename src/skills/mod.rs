//! Skills: folders with a `SKILL.md` that tell a model how to do something. [`SkillRegistry`] finds and checks them;
//! loading one brings its files into the run. A skill asks and restricts; it grants nothing.

mod front_matter;
mod load;

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

pub use self::front_matter::{Fault, FrontMatter};
use crate::error::{Code, KgentError, ToolError};
use crate::permission::Rule;
use crate::sandbox::dir::{Component, Dir, Kind};
use crate::sandbox::host::{self, Unread};

/// The file that makes a folder a skill.
pub(crate) const SKILL_FILE: &str = "SKILL.md";
/// The largest `SKILL.md`, in bytes.
const MAX_SKILL_BYTES: u64 = 1 << 20;
/// The most entries of one root.
const MAX_ENTRIES: usize = 100_000;
/// The most skills of one registry.
const MAX_SKILLS: usize = 10_000;
/// The most bytes of `SKILL.md` that one discovery reads.
const MAX_TOTAL_BYTES: u64 = 1 << 28;
/// The longest id, in bytes.
const MAX_ID_BYTES: usize = 64;
/// The longest description in a catalogue, in characters.
pub(crate) const MAX_SHOWN_CHARS: usize = 300;

/// The skills of some folders, as they were when they were looked for.
#[derive(Debug)]
pub struct SkillRegistry {
    roots: Vec<Root>,
    /// By id; of one id the first root's first.
    skills: Vec<Skill>,
    by_id: HashMap<String, usize>,
}

#[derive(Debug)]
struct Root {
    dir: Dir,
    given: PathBuf,
    real: PathBuf,
}

/// A skill that was found.
#[derive(Clone, Debug)]
pub struct Skill {
    /// Its folder's name.
    pub id: String,
    root: usize,
    /// Whether an earlier root has the same id: then this one is only listed.
    pub shadowed: bool,
    /// What it says of itself, or why it cannot be used.
    pub state: Result<Sound, Broken>,
}

/// A skill that can be loaded.
#[derive(Clone, Debug)]
pub struct Sound {
    /// What it says of itself.
    pub front: FrontMatter,
    /// The characters of its body.
    pub characters: usize,
    body_at: usize,
    hash: [u8; 32],
}

/// Why a skill cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// `skill_invalid`, or `outside_sandbox` where a link leads away.
    pub code: Code,
    /// What is wrong, and where.
    pub fault: Fault,
}

impl Broken {
    fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, fault: Fault::whole(reason) }
    }
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self { code: Code::SkillInvalid, fault }
    }
}

impl Skill {
    /// What it says of itself, where it is valid.
    pub fn front(&self) -> Option<&FrontMatter> {
        self.state.as_ref().ok().map(|sound| &sound.front)
    }

    /// Why it cannot be loaded, on one line.
    pub fn error(&self) -> Option<String> {
        if self.shadowed {
            return Some("shadowed by the skill of that id in an earlier root".to_owned());
        }
        let broken = self.state.as_ref().err()?;
        let line = broken.fault.line.map(|line| format!(" line {line}")).unwrap_or_default();
        Some(format!("{SKILL_FILE}{line}: {}", broken.fault.reason))
    }

    /// Its description on one line, cut and escaped: text for a list that a model reads.
    pub fn shown_description(&self) -> String {
        self.front().map(|front| shown(&front.description)).unwrap_or_default()
    }
}

impl SkillRegistry {
    /// Finds the skills in `roots`: each folder in one that holds a `SKILL.md`. An earlier root wins over a later one.
    /// Broken skills are listed with what is wrong.
    ///
    /// # Errors
    /// [`KgentError::Run`] for a root that is no folder, or that holds more than 100,000 entries.
    pub fn discover(roots: &[PathBuf]) -> Result<Self, KgentError> {
        let mut registry = Self { roots: Vec::new(), skills: Vec::new(), by_id: HashMap::new() };
        let mut bytes_left = MAX_TOTAL_BYTES;
        for given in roots {
            let (dir, real) =
                host::open_root(given).map_err(|error| KgentError::Run(format!("skills root {error}")))?;
            if registry.roots.iter().any(|root| root.real == real) {
                continue;
            }
            let mut found = find(&dir, given, registry.roots.len(), &mut bytes_left)?;
            refuse_twins(&mut found);
            registry.roots.push(Root { dir, given: given.clone(), real });
            registry.skills.append(&mut found);
        }
        registry.skills.sort_by(|a, b| (&a.id, a.root).cmp(&(&b.id, b.root)));
        for (index, skill) in registry.skills.iter_mut().enumerate() {
            skill.shadowed = registry.by_id.contains_key(&skill.id);
            registry.by_id.entry(skill.id.clone()).or_insert(index);
        }
        Ok(registry)
    }

    /// Every skill that was found, by id; of one id the one that counts first.
    pub fn skills(&self) -> &[Skill] {
        &self.skills
    }

    /// The folders that it looked in, as they were given.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(|root| root.given.as_path())
    }

    /// The host path of a skill's `SKILL.md`, for the host.
    pub fn host_file(&self, skill: &Skill) -> PathBuf {
        let root = self.roots.get(skill.root).map(|root| root.given.clone()).unwrap_or_default();
        root.join(&skill.id).join(SKILL_FILE)
    }

    pub(crate) fn real_roots(&self) -> impl Iterator<Item = &Path> {
        self.roots.iter().map(|root| root.real.as_path())
    }

    /// What a skill declares, as rules of its own.
    pub fn rules(&self, id: &str) -> Option<Vec<Rule>> {
        self.usable(id).ok().map(|(_, sound)| sound.front.rules())
    }

    /// The ids of the skills that the run has loaded, whichever process of it did.
    #[cfg(feature = "python")]
    pub(crate) fn loaded(run: &crate::context::Run) -> Result<Vec<String>, ToolError> {
        Ok(load::loaded(run)?.into_iter().map(|entry| entry.id).collect())
    }

    /// The valid skills as text for a model's instructions: a line for each, at most `max_characters` in all. What does
    /// not fit is counted.
    pub fn instructions(&self, max_characters: usize) -> String {
        let valid: Vec<&Skill> = self.skills.iter().filter(|skill| skill.error().is_none()).collect();
        if valid.is_empty() {
            return String::new();
        }
        let head = "Skills: call load_skill(skill_id) before doing what a skill is for.\n".to_owned();
        let lines = valid.iter().map(|skill| format!("- {}: {}\n", skill.id, skill.shown_description()));
        let lines: Vec<String> = std::iter::once(head).chain(lines).collect();
        let length = |text: &str| text.chars().count();
        if lines.iter().map(|line| length(line)).sum::<usize>() <= max_characters {
            return lines.concat();
        }
        let more = |shown: usize| format!("({} more: see list_skills)\n", lines.len() - shown);
        let (mut used, mut shown) = (0, 0);
        for (index, line) in lines.iter().enumerate() {
            used += length(line);
            if used + length(&more(index + 1)) <= max_characters {
                shown = index + 1;
            }
        }
        if shown == 0 { String::new() } else { lines.get(..shown).unwrap_or_default().concat() + &more(shown) }
    }

    /// The skill of that id, where it can be used.
    fn usable(&self, id: &str) -> Result<(&Skill, &Sound), ToolError> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
        if !(1..=MAX_ID_BYTES).contains(&id.len()) || !id.bytes().all(plain) || id.starts_with('.') {
            return Err(ToolError::new(Code::InvalidArgs, format!("`skill_id` {} is no id of a skill", shown_id(id)))
                .hint("Send an id as list_skills gives it, such as `pdf-forms`."));
        }
        let Some(skill) = self.by_id.get(id).and_then(|index| self.skills.get(*index)) else {
            let ids: Vec<&str> = self.skills.iter().map(|skill| skill.id.as_str()).collect();
            let near = similar::get_close_matches(id, &ids, 3, 0.6);
            let hint = if near.is_empty() {
                "See list_skills.".to_owned()
            } else {
                format!("Did you mean `{}`?", near.join("` or `"))
            };
            return Err(ToolError::new(Code::NotFound, format!("there is no skill `{id}`")).hint(hint));
        };
        match &skill.state {
            Ok(sound) => Ok((skill, sound)),
            Err(broken) => Err(ToolError::new(
                broken.code,
                format!("the skill `{id}` cannot be used: {}", skill.error().unwrap_or_default()),
            )
            .hint("Go on without it, or tell the user.")
            .details(serde_json::json!({
                "file": format!("skills/{id}/{SKILL_FILE}"),
                "line": broken.fault.line,
                "reason": broken.fault.reason,
            }))),
        }
    }
}

/// The skills of one root.
fn find(dir: &Dir, given: &Path, root: usize, bytes_left: &mut u64) -> Result<Vec<Skill>, KgentError> {
    let entries = dir.entries(MAX_ENTRIES).map_err(|errno| {
        let why = match errno {
            Errno::TOOBIG => format!("has more than {MAX_ENTRIES} entries"),
            other => format!("cannot be listed: {}", std::io::Error::from(other)),
        };
        KgentError::Run(format!("skills root `{}` {why}", given.display()))
    })?;
    let mut found = Vec::new();
    for entry in entries {
        if entry.name.first() == Some(&b'.') || !matches!(entry.kind, Kind::Directory | Kind::Link) {
            continue;
        }
        let state = match entry.kind {
            Kind::Link => Err(Broken::new(Code::OutsideSandbox, "the skill's folder is a link")),
            _ => match read(dir, &entry.name, bytes_left) {
                None => continue,
                Some(read) => read,
            },
        };
        if found.len() == MAX_SKILLS {
            return Err(KgentError::Run(format!(
                "skills root `{}` holds more than {MAX_SKILLS} skills",
                given.display()
            )));
        }
        let id = match std::str::from_utf8(&entry.name) {
            Ok(id) => id.to_owned(),
            Err(_) => entry.name.escape_ascii().to_string(),
        };
        let state = state.and_then(|sound| check_id(&id, sound));
        found.push(Skill { id, root, shadowed: false, state });
    }
    Ok(found)
}

/// What the folder `name` says; `None` where it is no skill at all.
fn read(root: &Dir, name: &[u8], bytes_left: &mut u64) -> Option<Result<Sound, Broken>> {
    let folder = match Component::of(name).and_then(|name| root.open_dir(name)) {
        Ok(folder) => folder,
        // Gone or replaced since the root was listed.
        Err(Errno::NOENT) => return None,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            return Some(Err(Broken::new(Code::OutsideSandbox, "the skill's folder is a link")));
        }
        Err(errno) => {
            let why = format!("the folder cannot be opened: {}", std::io::Error::from(errno));
            return Some(Err(Broken::new(Code::SkillInvalid, why)));
        }
    };
    match read_skill_file(&folder) {
        Ok(bytes) => {
            let size = bytes.len() as u64;
            if size > *bytes_left {
                return Some(Err(Broken::new(Code::SkillInvalid, "the skills before it already have 256 MiB")));
            }
            *bytes_left -= size;
            Some(sound(&bytes))
        }
        Err(broken) if broken.fault.reason == MISSING => {
            let other = Component::of(b"skill.md").and_then(|name| folder.look(name));
            other.is_ok().then(|| Err(Broken::new(Code::SkillInvalid, "the file's name must be SKILL.md")))
        }
        Err(broken) => Some(Err(broken)),
    }
}

const MISSING: &str = "the file is missing";

fn read_skill_file(folder: &Dir) -> Result<Vec<u8>, Broken> {
    let invalid = |why: String| Broken::new(Code::SkillInvalid, why);
    let read = Component::of(SKILL_FILE.as_bytes()).map_err(Unread::from);
    read.and_then(|name| host::read_entry(folder, name, MAX_SKILL_BYTES)).map_err(|why| match why {
        Unread::Is(Kind::Link) => Broken::new(Code::OutsideSandbox, "the file is a link"),
        Unread::Is(kind) => invalid(format!("it is a {}, not a file", kind.as_str())),
        Unread::TooLarge => invalid(format!("the file has more than {MAX_SKILL_BYTES} bytes")),
        Unread::Failed(Errno::NOENT) => invalid(MISSING.to_owned()),
        Unread::Failed(errno) => invalid(format!("the file cannot be read: {}", std::io::Error::from(errno))),
    })
}

fn sound(bytes: &[u8]) -> Result<Sound, Broken> {
    let (front, body_at) = front_matter::parse(bytes)?;
    let body = bytes.get(body_at..).and_then(|body| std::str::from_utf8(body).ok()).unwrap_or_default();
    Ok(Sound { front, characters: body.chars().count(), body_at, hash: *blake3::hash(bytes).as_bytes() })
}

fn check_id(id: &str, sound: Sound) -> Result<Sound, Broken> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let invalid = |why: String| Broken::new(Code::SkillInvalid, why);
    if !(1..=MAX_ID_BYTES).contains(&id.len()) || !id.bytes().all(plain) || id.starts_with(['-', '_']) {
        return Err(invalid(format!(
            "the folder's name is no id: use 1 to {MAX_ID_BYTES} letters, digits, `-` or `_`, a letter or digit first"
        )));
    }
    if sound.front.name != id {
        return Err(invalid(format!("`name` is `{}`, but the folder is `{id}`", shown(&sound.front.name))));
    }
    Ok(sound)
}

/// Two of one root that only case or the declared name confuses are both invalid, whichever was listed first.
fn refuse_twins(found: &mut [Skill]) {
    let mut by_folded: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, skill) in found.iter().enumerate() {
        by_folded.entry(skill.id.to_ascii_lowercase()).or_default().push(index);
    }
    let twins: HashSet<usize> = by_folded.into_values().filter(|group| group.len() > 1).flatten().collect();
    for (index, skill) in found.iter_mut().enumerate() {
        if twins.contains(&index) {
            skill.state = Err(Broken::new(
                Code::SkillInvalid,
                "another folder of this root has the same name but for upper and lower case",
            ));
        }
    }
}

/// Text of a skill's author as one line without control or invisible characters, cut.
fn shown(text: &str) -> String {
    let mut out = String::new();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (count, c) in words.chars().enumerate() {
        if count == MAX_SHOWN_CHARS - 1 && words.chars().nth(MAX_SHOWN_CHARS).is_some() {
            out.push('…');
            break;
        }
        if crate::sandbox::path::is_deceptive(c) {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

fn shown_id(id: &str) -> String {
    format!("`{}`", shown(crate::output::bound::cut(id, 80)))
}
