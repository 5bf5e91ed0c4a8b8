//! Half a round trip between two programs that sleep until a signal of the other wakes them (P5).
//!
//! ```text
//!   initiator: signal ──► echo: is woken, signals ──► initiator: is woken, signals … so many balls
//! ```
//! None of them spins, so a ball is a signal, an interrupt of the other machine and the way from there
//! to a thread. A [`doorbell`] is the bare interrupt of QEMU's ivshmem-doorbell; a [`notification`] is
//! that of a write by qnic.
//!
//! Both sides know how many balls there are, so no message has to say which one is the last.

mod doorbell;
mod notification;

use std::time::Instant;

use anyhow::Result;
use clap::Args;

pub(crate) use doorbell::{run as by_doorbell, Options as DoorbellOptions};
pub(crate) use notification::{run as by_notification, Options as NotificationOptions};

/// Which side it is, and how long it takes.
#[derive(Args)]
struct Side {
    /// Answer the balls of the other program
    #[arg(long)]
    echo: bool,
    /// Balls
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    balls: u32,
}

/// One side of the balls, which signals the other by `hit`.
struct Rally<F> {
    is_echo: bool,
    left: u32,
    hit: F,
    begun: Instant,
    /// Half of each round trip, in nanoseconds. An echo has them too, but its first is not whole.
    times: Vec<u64>,
}

impl<F: FnMut() -> Result<()>> Rally<F> {
    /// Begins; the initiator hits the first ball.
    fn begin(side: &Side, hit: F) -> Result<Self> {
        let mut rally = Rally {
            is_echo: side.echo,
            left: side.balls,
            hit,
            begun: Instant::now(),
            times: Vec::with_capacity(side.balls as usize),
        };
        if !side.echo {
            rally.hit()?;
        }
        Ok(rally)
    }

    fn hit(&mut self) -> Result<()> {
        self.begun = Instant::now();
        (self.hit)()
    }

    /// A ball has come; returns true if it was the last one. Those that come later are left out.
    fn comes(&mut self) -> Result<bool> {
        let Some(left) = self.left.checked_sub(1) else {
            // One more than the peer should have sent.
            return Ok(false);
        };
        self.left = left;
        self.times.push(self.begun.elapsed().as_nanos() as u64 / 2);
        let was_last = self.left == 0;
        if self.is_echo || !was_last {
            self.hit()?;
        }
        Ok(was_last)
    }

    /// Plays until the last ball; `wait` returns when one has come.
    fn play(mut self, mut wait: impl FnMut() -> Result<()>) -> Result<Vec<u64>> {
        loop {
            wait()?;
            if self.comes()? {
                return Ok(self.times);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const BALLS: u32 = 5;

    #[test]
    fn a_ball_too_many_is_left_out() {
        let side = Side {
            echo: true,
            balls: 1,
        };
        let mut hits = 0;
        let mut rally = Rally::begin(&side, || {
            hits += 1;
            Ok(())
        })
        .unwrap();
        assert!(rally.comes().unwrap());
        assert!(!rally.comes().unwrap());
        assert_eq!(rally.times.len(), 1);
        drop(rally);
        assert_eq!(hits, 1);
    }

    #[test]
    fn both_sides_end_after_the_last_ball_and_none_is_left() {
        let (to_echo, at_echo) = mpsc::channel();
        let (to_initiator, at_initiator) = mpsc::channel();
        let limit = Duration::from_secs(30);
        let play = move |echo, sender: mpsc::Sender<()>, receiver: mpsc::Receiver<()>| {
            let side = Side { echo, balls: BALLS };
            let rally = Rally::begin(&side, || Ok(sender.send(())?)).unwrap();
            let times = rally.play(|| Ok(receiver.recv_timeout(limit)?)).unwrap();
            (times.len(), receiver)
        };
        let echo = std::thread::spawn(move || play(true, to_initiator, at_echo));
        let (played, at_initiator) = play(false, to_echo, at_initiator);
        let (answered, at_echo) = echo.join().unwrap();
        assert_eq!([played, answered], [BALLS as usize; 2]);
        assert!(at_initiator.try_recv().is_err() && at_echo.try_recv().is_err());
    }
}
