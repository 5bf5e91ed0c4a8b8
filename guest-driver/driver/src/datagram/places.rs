//! The places of ports in the engine.

use alloc::boxed::Box;

use super::bound::Bound;
use super::buffer::PortKey;
use super::config::BindError;
use super::engine::Engine;
use crate::platform::{Lock, Platform};

impl<P: Platform, U: Send> Engine<P, U> {
    /// A place for a port. [`Engine::insert`] follows; there is one caller at a time.
    pub(super) fn free_place(&self, number: u16) -> Result<PortKey, BindError> {
        if !self.device.is_alive() {
            return Err(BindError::NoDevice);
        }
        self.state.with(|state| {
            if state.bound().any(|port| port.number == number) {
                return Err(BindError::InUse);
            }
            let index = state.ports.iter().position(Option::is_none);
            state.generation = state.generation.wrapping_add(1);
            Ok(PortKey {
                index: index.ok_or(BindError::Exhausted)? as u8,
                generation: state.generation,
            })
        })
    }

    /// Puts a port in its place.
    pub(super) fn insert(&self, port: Box<Bound<P, U>>) {
        self.state.with(|state| {
            let index = usize::from(port.key.index);
            if let Some(place) = state.ports.get_mut(index) {
                *place = Some(port);
                state.places = state.places.max(index + 1);
            }
        });
    }

    /// Takes a closing port out if nothing of it is left. To be dropped where it may sleep.
    pub(super) fn remove(&self, key: PortKey) -> Option<Box<Bound<P, U>>> {
        self.state.with(|state| {
            let quiet = state.port(key)?.is_quiet() && !state.is_served();
            let place = state.ports.get_mut(usize::from(key.index))?;
            let port = place.take_if(|_| quiet)?;
            let last = state.ports.iter().rposition(Option::is_some);
            state.places = last.map_or(0, |last| last + 1);
            Some(port)
        })
    }

    /// Runs `f` with a port, and sends nothing; `None` if it is closed. Atomic.
    pub(super) fn peek<R>(&self, key: PortKey, f: impl FnOnce(&mut Bound<P, U>) -> R) -> Option<R> {
        self.state.with(|state| state.port(key).map(f))
    }

    /// The number of commands that the NIC has to read until it has all receive buffers of a port;
    /// `None` while some are not in the queue. A closed port has no buffers. Atomic.
    pub(super) fn posted_with(&self, key: PortKey) -> Option<u64> {
        self.state.with(|state| match state.port(key) {
            Some(port) if port.receives.has_idle() => None,
            Some(_) => Some(state.queues.put_count()),
            None => Some(0),
        })
    }

    /// Returns true if the NIC has read the first `count` commands. Atomic.
    pub(super) fn has_read(&self, count: u64) -> bool {
        self.state
            .with(|state| state.queues.has_read(self.area(), count))
    }

    /// A number for a steered buffer. It cannot be guessed, because a node that knows a handle may
    /// send to the buffer. Atomic.
    pub(super) fn secret_use(&self) -> u64 {
        self.device.platform.random()
    }
}
