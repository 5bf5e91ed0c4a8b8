//! Chooses a sample of events to be timed.

/// One of so many events is chosen. The number is a prime: where kinds of events
/// alternate, all kinds are chosen.
pub const PERIOD: u8 = 61;

/// Chooses the first event, and every [`PERIOD`]th after it.
#[derive(Debug)]
pub struct Countdown(u8);

impl Countdown {
    /// The next event is chosen.
    pub const fn new() -> Self {
        Countdown(1)
    }

    /// Counts an event. Returns true if it is chosen.
    #[inline]
    pub fn count(&mut self) -> bool {
        self.0 = self.0.checked_sub(1).unwrap_or(PERIOD - 1);
        self.is_chosen()
    }

    /// Returns true if the last event was chosen.
    #[inline]
    pub fn is_chosen(&self) -> bool {
        self.0 == 0
    }
}

impl Default for Countdown {
    fn default() -> Self {
        Countdown::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_every_61st_behind_it_are_chosen() {
        let mut countdown = Countdown::new();
        for number in 0..1000 {
            assert_eq!(countdown.count(), number % 61 == 0, "{number}");
            assert_eq!(countdown.is_chosen(), number % 61 == 0);
        }
    }
}
