//! What programs say that measure networks: perftest, qperf, iperf3.

use anyhow::{Context, Result};

/// Reads the one figure that a program is asked for, in microseconds or MB/s.
pub(super) type Parse = fn(&str) -> Result<f64>;

/// Bytes of a MiB, by those of a megabyte.
const MEBIBYTE_MB: f64 = 1.048576;

/// Columns of perftest: the typical half round trip, and the average bandwidth in MiB/s.
const TYPICAL: usize = 4;
const AVERAGE: usize = 3;

/// Units of qperf, in microseconds or MB/s.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-3),
    ("us", 1.0),
    ("ms", 1e3),
    ("sec", 1e6),
    ("KB/sec", 1e-3),
    ("MB/sec", 1.0),
    ("GB/sec", 1e3),
];

/// The typical latency of perftest's `ib_write_lat` and `ib_send_lat`.
pub(super) fn latency(text: &str) -> Result<f64> {
    column(text, TYPICAL)
}

/// The average of perftest's `ib_write_bw`.
pub(super) fn bandwidth(text: &str) -> Result<f64> {
    Ok(column(text, AVERAGE)? * MEBIBYTE_MB)
}

/// A figure of the line below perftest's heads.
fn column(text: &str, number: usize) -> Result<f64> {
    let mut lines = text.lines();
    let row = lines
        .find(|line| line.trim_start().starts_with("#bytes"))
        .and_then(|_| lines.next());
    let figure = row.and_then(|row| row.split_whitespace().nth(number)?.parse().ok());
    figure.with_context(|| format!("perftest has no column {number}: {text:?}"))
}

/// The one figure that qperf says: `latency = 392 us`, `bw = 37.8 MB/sec`.
pub(super) fn qperf(text: &str) -> Result<f64> {
    let of_line = |line: &str| -> Option<f64> {
        let (name, figure) = line.split_once('=')?;
        let is_wanted = ["latency", "bw"].contains(&name.trim());
        let mut words = figure.split_whitespace().filter(|_| is_wanted);
        let value: f64 = words.next()?.replace(',', "").parse().ok()?;
        let unit = words.next()?;
        let (_, factor) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        Some(value * factor)
    };
    let figure = text.lines().find_map(of_line);
    figure.with_context(|| format!("qperf says neither latency nor bw: {text:?}"))
}

/// What iperf3's receiver got, in MB/s.
pub(super) fn iperf3(text: &str) -> Result<f64> {
    let report: serde_json::Value =
        serde_json::from_str(text).with_context(|| format!("iperf3 says {text:?}"))?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    let bits = bits.with_context(|| format!("iperf3 received nothing: {text:?}"))?;
    Ok(bits / 8e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       1000          515.31         9021.11      1110.24            1300.10        400.20          4250.00                8000.00
---------------------------------------------------------------------------------------
";
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      200              9.10               8.00                 0.000128
";

    #[test]
    fn figures_are_read() {
        assert_eq!(latency(LATENCY).unwrap(), 1110.24);
        assert_eq!(bandwidth(BANDWIDTH).unwrap(), 8.388608);
        assert_eq!(qperf("tcp_lat:\n    latency  =  392 us\n").unwrap(), 392.0);
        assert_eq!(qperf("tcp_lat:\n    latency  =  1.5 ms\n").unwrap(), 1500.0);
        assert_eq!(qperf("tcp_bw:\n    bw  =  37.8 MB/sec\n").unwrap(), 37.8);
        let report = "{\"end\": {\"sum_received\": {\"bits_per_second\": 8e8}}}";
        assert_eq!(iperf3(report).unwrap(), 100.0);
    }

    #[test]
    fn what_has_no_figure_is_an_error_that_shows_it() {
        let head = LATENCY.lines().nth(1).unwrap();
        for text in ["", "Couldn't connect", head, "#bytes\nx y z"] {
            for parse in [latency, bandwidth, qperf, iperf3] {
                let error = format!("{:#}", parse(text).unwrap_err());
                assert!(error.contains(&format!("{text:?}")), "{error}");
            }
        }
        assert!(qperf("latency = 3 parsecs").is_err());
    }
}
