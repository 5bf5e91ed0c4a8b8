//! The handle by which other threads reach the engine: they send it functions to run.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::Arc;

use super::Engine;
use crate::notifier::Notifier;

/// The engine thread has ended.
#[derive(Debug, thiserror::Error)]
#[error("the engine has stopped")]
pub(crate) struct EngineGone;

/// What the engine thread is to do.
pub(super) type Command = Box<dyn FnOnce(&mut Engine) + Send>;

/// Reaches the engine thread.
#[derive(Debug, Clone)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    wake: Arc<Notifier>,
}

/// The ends of the handle that the engine takes.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(super) receiver: Receiver<Command>,
    /// Signalled when there is a command.
    pub(super) wake: Arc<Notifier>,
}

/// A handle, and what an engine needs to serve it.
pub(crate) fn channel() -> std::io::Result<(EngineHandle, Commands)> {
    let (commands, receiver) = mpsc::channel();
    let wake = Arc::new(Notifier::new()?);
    let handle = EngineHandle {
        commands,
        wake: wake.clone(),
    };
    Ok((handle, Commands { receiver, wake }))
}

impl EngineHandle {
    /// Runs `work` on the engine thread, without waiting for it.
    pub(crate) fn send(
        &self,
        work: impl FnOnce(&mut Engine) + Send + 'static,
    ) -> Result<(), EngineGone> {
        self.commands.send(Box::new(work)).map_err(|_| EngineGone)?;
        self.wake.signal();
        Ok(())
    }

    /// Runs `work` on the engine thread, waits for it and returns its result. So a thread
    /// has at most one command outstanding.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<T, EngineGone> {
        let (result, received) = mpsc::sync_channel(1);
        // A requester that has gone does not wait for the result any more.
        self.send(move |engine| drop(result.send(work(engine))))?;
        received.recv().map_err(|_| EngineGone)
    }
}
