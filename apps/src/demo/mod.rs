//! The demo: an application that exports, and one that writes to it, reads from
//! it and notifies it, with every byte verified.
//!
//! ```text
//!  initiator                                   target
//!    data, any size and alignment  ──write──►  DATA
//!    request {verify offset length}──writeN─►  REQUESTS        notification REQUEST
//!                                              checksum of what arrived, guards
//!    RESULTS                      ◄──writeN──  result          notification RESULT
//!    BACK                         ◄──read────  DATA
//! ```
//! The request overtakes no data: a notification arrives after everything that
//! its sender wrote before (N18). So a verified checksum verifies the order too.

mod initiator;
mod protocol;
mod target;

pub(crate) use initiator::{run as initiator, Initiator, InitiatorOptions, Operation};
pub(crate) use target::run as target;
