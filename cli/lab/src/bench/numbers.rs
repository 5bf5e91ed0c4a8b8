//! Numbers as people read them.

/// A number with three digits or more.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        value if value < 100.0 => 2,
        value if value < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// A ratio with two digits at least, however small it is.
pub(super) fn ratio_text(value: f64) -> String {
    let digits = match value.abs() {
        small if small > 0.0 && small < 0.1 => 1 - small.log10().floor() as i32,
        _ => 2,
    };
    format!("{value:.*}", digits.clamp(2, 9) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ratios_have_digits() {
        let shown = [0.0, 0.000_071, 0.0123, 0.1, 1.5, 1234.5].map(ratio_text);
        assert_eq!(
            shown,
            ["0.00", "0.000071", "0.012", "0.10", "1.50", "1234.50"]
        );
        assert_eq!(ratio_text(f64::NAN), "NaN");
    }
}
