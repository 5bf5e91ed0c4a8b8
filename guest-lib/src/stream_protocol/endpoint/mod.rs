//! The endpoint: all connections of one datagram port.
//!
//! | module | |
//! |---|---|
//! | `calls` | the calls of the program: connect, accept, read, write, finish, close |
//! | `incoming` | frames that come in |
//! | `outgoing` | the next frame to send |
//! | `alarms` | timers |
//! | `table` | the connections, and the state that they share |

mod alarms;
mod calls;
mod incoming;
mod outgoing;
mod table;

pub use outgoing::Transmit;
pub use table::{Changed, Counters, Endpoint};
