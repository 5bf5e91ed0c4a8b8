//! The endpoint: all connections of one datagram port.
//!
//! | module | |
//! |---|---|
//! | `calls` | what the program asks for: connect, accept, read, write, finish, close |
//! | `incoming` | what becomes of a frame |
//! | `outgoing` | the next frame to send |
//! | `alarms` | what happens when time passes |
//! | `table` | the connections, and what they share |

mod alarms;
mod calls;
mod incoming;
mod outgoing;
mod table;

pub use outgoing::Transmit;
pub use table::{Changed, Counters, Endpoint};
