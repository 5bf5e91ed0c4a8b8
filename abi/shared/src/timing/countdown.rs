//! Chooses which of many things are timed.

/// How many things have one among them that is chosen. It is a prime: where kinds of them
/// alternate, all kinds are chosen.
pub const PERIOD: u8 = 61;

/// Chooses the first thing, and every [`PERIOD`]th behind it.
#[derive(Debug)]
pub struct Countdown(u8);

impl Countdown {
    /// The next one is chosen.
    pub const fn new() -> Self {
        Countdown(1)
    }

    /// Counts one more. Returns true if it is chosen.
    #[inline]
    pub fn count(&mut self) -> bool {
        self.0 = self.0.checked_sub(1).unwrap_or(PERIOD - 1);
        self.is_chosen()
    }

    /// Returns true if the last one is chosen.
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
