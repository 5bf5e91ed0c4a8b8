//! What every protocol of qnic that repeats what was lost needs to know of time: the timer
//! wheel, the round-trip estimator, and congestion control by delay.
//!
//! ```text
//!   sent ──► TimerWheel::check_in(now + RoundTrip::timeout)
//!   acknowledged in time ──► check_out, RoundTrip::sample
//!   not acknowledged     ──► pop_due, RoundTrip::back_off, sent again
//! ```
//!
//! The NIC's transport and the protocols that run beside a driver or in a process use the
//! same, so there is one of each. [`Histogram`] counts
//! times, and [`Countdown`] chooses what is timed, to show where time goes.
//! Nothing here reads a clock: time comes in as
//! [`Time`].

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
