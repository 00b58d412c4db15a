//! [`ToolRegistry`]: who registers what where. Three scopes: the application's, for every run of the process; a run's
//! location, the built-ins as its first batch; a session in it. The innermost wins, and in one scope the newest.

use std::sync::Arc;

use super::definition::ToolDefinition;
use super::stacks::{Entry, Names, Stacks};
use super::swap::Swap;
use crate::context::RunContext;
use crate::error::KgentError;
use crate::tools;

/// The application's tools and the location's stand under no session.
const NO_SESSION: &str = "";
/// The longest session id and provider, in bytes.
const MAX_ID_BYTES: usize = 256;

/// Registered once, seen by every run.
static APPLICATION: Stacks<Registered> = Stacks::over(Swap::new());

/// A registered tool, and who stands behind it: `None` is the host.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) tool: ToolDefinition,
    pub(crate) provider: Option<Arc<str>>,
}

/// The registrations of one run: its location's, and its sessions'.
#[derive(Debug)]
pub(crate) struct Location(Stacks<Registered>);

impl Location {
    /// A location: the built-ins are its first batch.
    pub(crate) fn with_builtin() -> Arc<Self> {
        let location = Self(Stacks::over(Swap::new()));
        let builtin = tools::builtin().into_iter().map(|(name, tool)| entry(&name, &tool, None));
        location.0.add(NO_SESSION, &builtin.collect::<Vec<_>>());
        Arc::new(location)
    }

    /// Lets go of every registration, and takes no more.
    pub(crate) fn close(&self) {
        self.0.close_all();
    }
}

/// Where a registry registers.
#[derive(Clone, Debug)]
enum Home {
    Application,
    Run(Arc<Location>),
}

impl Home {
    fn stacks(&self) -> &Stacks<Registered> {
        match self {
            Self::Application => &APPLICATION,
            Self::Run(location) => &location.0,
        }
    }
}

/// The effective tools of a run, or of one of its sessions, as they are now.
#[derive(Clone, Debug)]
pub(crate) struct View {
    location: Arc<Location>,
    session: Arc<str>,
}

impl View {
    /// What is effective at this moment, fixed.
    pub(crate) fn capture(&self) -> Captured {
        let session = match &*self.session {
            NO_SESSION => Names::new(),
            session => self.location.0.load(session),
        };
        Captured {
            scopes: [
                ("session", session),
                ("location", self.location.0.load(NO_SESSION)),
                ("application", APPLICATION.load(NO_SESSION)),
            ],
        }
    }

    /// Whether it is this context's run that the view looks at.
    pub(crate) fn is_of(&self, context: &RunContext) -> bool {
        Arc::ptr_eq(&self.location, &context.run().location)
    }
}

/// Tools as they were at one moment, from the innermost scope to the outermost.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    scopes: [(&'static str, Names<Registered>); 3],
}

impl Captured {
    /// The effective tool of that name, with its scope.
    pub(crate) fn find(&self, name: &str) -> Option<Found<'_>> {
        self.scopes.iter().find_map(|(scope, names)| Some((*scope, names.get(name)?.last()?)))
    }

    /// Every effective tool, by name.
    pub(crate) fn all(&self) -> impl Iterator<Item = Found<'_>> {
        let mut all = std::collections::BTreeMap::new();
        for (scope, names) in self.scopes.iter().rev() {
            all.extend(names.into_iter().filter_map(|(name, stack)| Some((&**name, (*scope, stack.last()?)))));
        }
        all.into_values()
    }
}

/// A scope's word, and what is on top there.
pub(crate) type Found<'a> = (&'static str, &'a Entry<Registered>);

/// Whether a tool that was offered is still the one that its name means.
#[derive(Clone, Debug)]
pub(crate) struct Liveness {
    pub(crate) view: View,
    pub(crate) scope: &'static str,
    pub(crate) id: u64,
}

impl Liveness {
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.view.capture().find(name).is_some_and(|(scope, entry)| (scope, entry.id) == (self.scope, self.id))
    }
}

/// A batch of registered tools. It stays until it is closed, or its run is.
#[derive(Debug)]
pub struct Registration {
    home: Home,
    batch: u64,
    provider: Option<Arc<str>>,
}

impl Registration {
    /// Removes the batch. A second time it does nothing.
    pub fn close(&self) {
        self.home.stacks().close(self.batch);
    }

    /// Replaces the batch, in one step and at its own place: what was registered after it still covers it. A tool that
    /// is the same as before does not go stale.
    ///
    /// # Errors
    /// [`KgentError::Registration`] as for [`ToolRegistrar::register`], and where the batch was closed.
    pub fn replace(&self, tools: &[(String, ToolDefinition)]) -> Result<(), KgentError> {
        let named = batch(tools, self.provider.as_ref())?;
        let same = |old: &Registered, new: &Registered| old.tool.is(&new.tool);
        if self.home.stacks().replace(self.batch, &named, same) {
            return Ok(());
        }
        Err(KgentError::Registration("the registration was closed: register the tools anew".into()))
    }
}

/// A door to one scope that can register there and do nothing else.
#[derive(Clone, Debug)]
pub struct ToolRegistrar {
    home: Home,
    session: Arc<str>,
}

impl ToolRegistrar {
    /// Registers a batch, all of it or none. `provider` names the plugin or server that stands behind the tools, where
    /// it is not the host: then they ask unless a rule allows them, and cover no built-in tool.
    ///
    /// # Errors
    /// [`KgentError::Registration`] for a name that is not `^[A-Za-z][A-Za-z0-9_-]{0,63}$`, or that a provider may not
    /// take; [`KgentError::Run`] where the run was closed.
    pub fn register(
        &self,
        tools: &[(String, ToolDefinition)],
        provider: Option<&str>,
    ) -> Result<Registration, KgentError> {
        let provider: Option<Arc<str>> = provider.map(|id| checked_id("provider", id)).transpose()?;
        let named = batch(tools, provider.as_ref())?;
        let Some(batch) = self.home.stacks().add(&self.session, &named) else {
            return Err(KgentError::Run("the run is closed: it takes no registrations".into()));
        };
        Ok(Registration { home: self.home.clone(), batch, provider })
    }
}

/// The tools of one scope, and of those around it.
#[derive(Clone, Debug)]
pub struct ToolRegistry {
    registrar: ToolRegistrar,
    /// The run, where it is not the application's.
    context: Option<RunContext>,
}

impl ToolRegistry {
    /// The location of the run: every registry of one run is the same.
    pub fn new(context: &RunContext) -> Self {
        let home = Home::Run(Arc::clone(&context.run().location));
        Self { registrar: ToolRegistrar { home, session: NO_SESSION.into() }, context: Some(context.clone()) }
    }

    /// The application's scope: what is registered here is seen by every run of the process.
    pub fn application() -> Self {
        Self { registrar: ToolRegistrar { home: Home::Application, session: NO_SESSION.into() }, context: None }
    }

    /// The scope of one session of the run: every registry of one session is the same.
    ///
    /// # Errors
    /// [`KgentError::Registration`] for an empty or overlong id, and where this is the application's registry.
    pub fn session(&self, id: &str) -> Result<Self, KgentError> {
        let session = checked_id("session", id)?;
        let context = Some(self.context()?.clone());
        Ok(Self { registrar: ToolRegistrar { home: self.registrar.home.clone(), session }, context })
    }

    /// What can register here, and do nothing else.
    pub fn registrar(&self) -> &ToolRegistrar {
        &self.registrar
    }

    /// The run that it belongs to.
    ///
    /// # Errors
    /// [`KgentError::Registration`] for the application's registry, which belongs to none.
    pub fn context(&self) -> Result<&RunContext, KgentError> {
        self.context.as_ref().ok_or_else(|| {
            KgentError::Registration(
                "the application's registry belongs to no run: use ToolRegistry(context) for this".into(),
            )
        })
    }

    /// The tools of this scope and those around it, as they are at each moment.
    pub(crate) fn view(&self) -> Result<View, KgentError> {
        let location = Arc::clone(&self.context()?.run().location);
        Ok(View { location, session: Arc::clone(&self.registrar.session) })
    }
}

fn batch(
    tools: &[(String, ToolDefinition)],
    provider: Option<&Arc<str>>,
) -> Result<Vec<(Arc<str>, Registered)>, KgentError> {
    let builtin = if provider.is_some() { tools::builtin() } else { Vec::new() };
    for (name, _) in tools {
        check_name(name)?;
        if builtin.iter().any(|(taken, _)| taken == name) {
            return Err(KgentError::Registration(format!(
                "tool name {name:?}: only the host may cover a built-in tool, {} may not",
                provider.map_or("another", |id| id)
            )));
        }
    }
    Ok(tools.iter().map(|(name, tool)| entry(name, tool, provider)).collect())
}

fn entry(name: &str, tool: &ToolDefinition, provider: Option<&Arc<str>>) -> (Arc<str>, Registered) {
    let name: Arc<str> = name.into();
    (Arc::clone(&name), Registered { tool: tool.named(name), provider: provider.cloned() })
}

fn checked_id(what: &str, id: &str) -> Result<Arc<str>, KgentError> {
    if (1..=MAX_ID_BYTES).contains(&id.len()) && !id.contains(char::is_control) {
        return Ok(id.into());
    }
    Err(KgentError::Registration(format!(
        "{what} {id:?}: use 1 to {MAX_ID_BYTES} bytes of text without control characters"
    )))
}

/// The name of a tool.
///
/// # Errors
/// [`KgentError::Registration`] where it cannot be one.
pub fn checked_name(name: &str) -> Result<Arc<str>, KgentError> {
    check_name(name).map(|()| name.into())
}

fn check_name(name: &str) -> Result<(), KgentError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    let fits = (1..=64).contains(&name.len())
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && name.bytes().all(plain);
    if fits {
        return Ok(());
    }
    Err(KgentError::Registration(format!(
        "tool name {name:?}: use a letter, then at most 63 letters, digits, `_` or `-`"
    )))
}
