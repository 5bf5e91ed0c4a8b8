//! What nodes do when their process exits and has not dropped them (unsafe shell).
//!
//! ```text
//!   exit() ─► announce, reset ─► peers know at once that the node has left
//!   signal ─► nothing: the kernel stops the device (function), and peers know later (docs/vfio.md)
//! ```
//! In host mode the end of a connection tells the device process. QEMU tells it nothing of a function
//! that was closed: its queues stop as in a pause.
//!
//! # Invariants
//! - Nothing waits for the lock of the list in the handler: a forked child may have it taken for ever.
#![allow(unsafe_code)]

use std::sync::{Mutex, Once, PoisonError};

use qnic_host::{HostNode, WeakNode};

static NODES: Mutex<Vec<WeakNode>> = Mutex::new(Vec::new());

/// Lets the node leave the network when this process exits.
pub(crate) fn leave_at_exit(node: &HostNode) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as the process. Without memory for one more, peers learn
        // later that the process has exited.
        unsafe { libc::atexit(leave) };
    });
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.retain(WeakNode::is_there);
    nodes.push(node.downgrade());
}

extern "C" fn leave() {
    let Ok(mut nodes) = NODES.try_lock() else {
        return;
    };
    for node in std::mem::take(&mut *nodes) {
        node.leave();
    }
}
