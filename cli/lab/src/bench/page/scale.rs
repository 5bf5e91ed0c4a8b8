//! From values to places in a picture.

/// Values from one end to the other, and the places of these ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// A scale for some values: by powers if they are all above 0 and the largest is more than
    /// `log_from` times the smallest; else linear, from 0. None without values.
    pub(super) fn of(
        values: impl IntoIterator<Item = f64>,
        log_from: f64,
        (from, to): (f64, f64),
    ) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().filter(|it| it.is_finite()).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let is_log = low > 0.0 && high / low >= log_from;
        let (low, high) = match is_log {
            true => (low, high),
            false => (low.min(0.0), high.max(low.min(0.0) + f64::MIN_POSITIVE)),
        };
        Some(Scale {
            is_log,
            low,
            high,
            from,
            to,
        })
    }

    /// The same with some room above the largest value, and below the smallest one of powers.
    pub(super) fn with_room(mut self) -> Self {
        if self.is_log {
            self.low /= 1.25;
            self.high *= 1.25;
        } else {
            self.high *= 1.06;
        }
        self
    }

    /// Where a value is.
    pub(super) fn place(&self, value: f64) -> f64 {
        let part = match self.is_log {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + (self.to - self.from) * part.clamp(0.0, 1.0)
    }

    /// Values for lines across the picture: some four to eight.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let decades = (self.high / self.low).log10();
            let digits: &[f64] = match decades {
                d if d > 2.2 => &[1.0],
                d if d > 1.2 => &[1.0, 3.0],
                _ => &[1.0, 2.0, 5.0],
            };
            let (first, last) = (self.low.log10().floor(), self.high.log10().ceil());
            let powers = (first as i32..=last as i32).map(|power| 10f64.powi(power));
            let all = powers.flat_map(|power| digits.iter().map(move |digit| digit * power));
            return all
                .filter(|it| *it >= self.low && *it <= self.high)
                .collect();
        }
        let rough = (self.high - self.low) / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|digit| digit * power);
        let step = step.into_iter().find(|it| *it >= rough).unwrap_or(rough);
        let first = (self.low / step).ceil();
        let all = (0..12).map(|index| (first + f64::from(index)) * step);
        all.take_while(|it| *it <= self.high).collect()
    }
}

/// A value beside a line.
pub(super) fn tick_text(value: f64) -> String {
    let short = |value: f64| {
        let text = format!("{value:.3}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        text.to_owned()
    };
    match value.abs() {
        size if size >= 1e6 => format!("{}M", short(value / 1e6)),
        size if size >= 1e4 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_grow_by_powers_are_at_equal_distances() {
        let scale = Scale::of([1.0, 100.0], 10.0, (0.0, 200.0)).unwrap();
        assert_eq!(
            [1.0, 10.0, 100.0].map(|it| scale.place(it).round()),
            [0.0, 100.0, 200.0]
        );
        assert_eq!(scale.ticks(), [1.0, 3.0, 10.0, 30.0, 100.0]);
    }

    #[test]
    fn others_begin_at_nothing() {
        let scale = Scale::of([4.0, 8.0], 10.0, (100.0, 0.0)).unwrap();
        assert_eq!(
            [0.0, 4.0, 8.0].map(|it| scale.place(it)),
            [100.0, 50.0, 0.0]
        );
        assert_eq!(scale.ticks(), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(Scale::of([], 10.0, (0.0, 1.0)), None);
        // All the same, and none: no division by nothing.
        for value in [0.0, 5.0] {
            let scale = Scale::of([value], 10.0, (0.0, 1.0)).unwrap().with_room();
            assert!(scale.place(value).is_finite() && !scale.ticks().is_empty());
        }
    }

    #[test]
    fn ticks_are_short() {
        let texts = [0.05, 2.5, 5000.0, 20_000.0, 1_500_000.0].map(tick_text);
        assert_eq!(texts, ["0.05", "2.5", "5000", "20k", "1.5M"]);
    }
}
