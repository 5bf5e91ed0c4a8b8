//! Time in the protocols of qnic that repeat lost frames: the timer
//! wheel, the round-trip estimator, and congestion control by delay.
//!
//! ```text
//!   sent ──► TimerWheel::check_in(now + RoundTrip::timeout)
//!   acknowledged in time ──► check_out, RoundTrip::sample
//!   not acknowledged     ──► pop_due, RoundTrip::back_off, sent again
//! ```
//!
//! The NIC's transport uses this code, and so do the protocols beside a driver or in a process.
//! [`Histogram`] counts times, and [`Countdown`] chooses a sample to be timed.
//! The code reads no clock: the caller passes each [`Time`].

mod congestion;
mod countdown;
mod histogram;
mod round_trip;
mod time;
mod wheel;

pub use congestion::{Acknowledged, Congestion};
pub use countdown::{Countdown, PERIOD};
pub use histogram::{Histogram, BUCKETS};
pub use round_trip::{RetransmitLimits, RoundTrip};
pub use time::Time;
pub use wheel::{TimerId, TimerWheel};
