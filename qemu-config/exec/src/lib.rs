//! Runs one command in a guest and carries its input, output and exit over a
//! virtio-serial port (X1).
//!
//! ```text
//!   host: qnic-cluster                          guest
//!   ──────────────────                          ─────
//!   agent.sock    ── guest-exec qnic-exec ────▶ qnic-exec serve PORT NONCE
//!   command3.sock ◀─ QEMU, org.qnic.command.3 ▶ │ serve()
//!      Open, Start, Stdin, Signal  ───────────▶ │   └─ the command, in a process
//!      ◀──────────  Stdout, Stderr, Exited      │      group of its own
//! ```
//!
//! Output moves when there is some: nothing polls. Everything is bytes. When the
//! host's end goes away, however it goes, the command's process group is killed;
//! one helper process serves one command, so that a crash costs only that command.
//!
//! Copying files needs nothing more: [`archive`] turns a tree into a byte stream
//! with a checksum and back, and `qnic-exec pack` and `unpack` are commands like any other.
#![forbid(unsafe_code)]

pub mod agent;
pub mod archive;
mod checksum;
pub mod guest;
mod job;
pub mod log;
pub mod wire;
