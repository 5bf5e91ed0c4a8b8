//! Tasks: ordinary code that waits under virtual time, on stackful coroutines. A wait gives
//! control back to the world, which resumes the task when its event comes.
//!
//! A task is never cancelled: a task whose node has crashed finds that out at its
//! next wait and returns. Only a simulation that has failed leaves tasks behind,
//! and their stacks with them: unwinding them would run code of a broken world.

use generator::{Generator, Gn};

/// Size of a stack in machine words; untouched pages cost nothing.
const STACK_WORDS: usize = 64 * 1024;

/// All tasks of a simulation, by number.
#[derive(Default)]
pub(crate) struct Tasks(Vec<Option<Generator<'static, (), ()>>>);

impl Tasks {
    /// Adds a task that has not begun.
    pub(crate) fn add(&mut self, body: impl FnOnce() + Send + 'static) {
        self.0.push(Some(Gn::new_opt(STACK_WORDS, body)));
    }

    /// Lets a task run until it waits or ends; returns true if it has ended.
    pub(crate) fn resume(&mut self, task: usize) -> bool {
        let Some(slot) = self.0.get_mut(task) else {
            return true;
        };
        if let Some(body) = slot {
            body.resume();
            if body.is_done() {
                *slot = None;
            }
        }
        slot.is_none()
    }

    pub(crate) fn alive(&self) -> usize {
        self.0.iter().flatten().count()
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.0.drain(..).flatten() {
            std::mem::forget(task);
        }
    }
}

/// Gives control back to the world until the running task is resumed.
pub(crate) fn pause() {
    // The other interface hands a handle to the task's outermost function, which
    // would have to be passed through the driver core; loom uses this one too.
    #[allow(deprecated)]
    generator::yield_with(());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn tasks_take_turns() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Tasks::default();
        for name in ["a", "b"] {
            let seen = seen.clone();
            tasks.add(move || {
                for round in 0..2 {
                    seen.lock().unwrap().push((name, round));
                    pause();
                }
            });
        }
        for _ in 0..2 {
            assert!(!tasks.resume(0) && !tasks.resume(1));
        }
        assert_eq!(tasks.alive(), 2);
        assert!(tasks.resume(0) && tasks.resume(1));
        assert_eq!(tasks.alive(), 0);
        assert_eq!(
            *seen.lock().unwrap(),
            [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
        );
    }
}
