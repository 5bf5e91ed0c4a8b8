//! Grids as PNG files.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};

/// From dark blue over red to white.
pub(super) fn heat_colour(part: f64) -> [u8; 3] {
    let ramp = |from: f64, to: f64| (((part - from) / (to - from)).clamp(0.0, 1.0) * 255.0) as u8;
    [
        ramp(0.1, 0.6),
        ramp(0.5, 0.9),
        80_u8.saturating_sub(ramp(0.0, 0.6) / 3).max(ramp(0.8, 1.0)),
    ]
}

/// Writes a picture with one pixel for each cell.
pub(super) fn write<T: Copy>(
    path: &Path,
    columns: usize,
    cells: &[T],
    colour: impl Fn(T) -> [u8; 3],
) -> Result<()> {
    let side = |pixels: usize| u32::try_from(pixels).context("the picture is too large");
    let (width, height) = (side(columns)?, side(cells.len() / columns.max(1))?);
    let what = || format!("write {}", path.display());
    let file = BufWriter::new(File::create(path).with_context(what)?);
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().with_context(what)?;
    let pixels: Vec<u8> = cells.iter().flat_map(|cell| colour(*cell)).collect();
    writer.write_image_data(&pixels).with_context(what)?;
    writer.finish().with_context(what)
}

#[cfg(test)]
mod tests {
    use super::heat_colour;

    #[test]
    fn hotter_is_brighter() {
        let brightness = |part| heat_colour(part).map(u32::from).iter().sum::<u32>();
        let steps: Vec<_> = [0.0, 0.3, 0.6, 0.9, 1.0].map(brightness).into();
        assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    }
}
