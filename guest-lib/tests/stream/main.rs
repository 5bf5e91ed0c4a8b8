//! Streams by the protocol alone: stories, losses, hostile peers and random wires, from seeds.

mod hostile;
mod losses;
mod random_wires;
mod stories;
mod wire;
