//! The table that a campaign makes: printed row by row, and written to a file in `docs/`
//! when it is complete.

use std::fs;

use anyhow::{Context, Result};

use crate::scratch::checkout;

/// Where the tables are, below the checkout.
const DIRECTORY: &str = "docs/proofs";

/// The table of one campaign.
pub(crate) struct Report {
    campaign: &'static str,
    text: String,
}

impl Report {
    /// A table without rows.
    pub(crate) fn new(campaign: &'static str, title: &str, columns: &[&str]) -> Self {
        let mut report = Report {
            campaign,
            text: String::new(),
        };
        report.line(&format!(
            "# {title}\n\nMade by `cargo run --bin qnic-mutants -- {campaign}`. Do not edit.\n"
        ));
        report.row(columns);
        report.row(&vec!["---"; columns.len()]);
        report
    }

    pub(crate) fn row<S: AsRef<str>>(&mut self, cells: &[S]) {
        let cells: Vec<_> = cells.iter().map(AsRef::as_ref).collect();
        self.line(&format!("| {} |", cells.join(" | ")));
    }

    fn line(&mut self, line: &str) {
        println!("{line}");
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds a summary; writes the file if the campaign was not restricted.
    pub(crate) fn finish(mut self, summary: &str, is_whole: bool) -> Result<()> {
        self.line(&format!("\n{summary}"));
        if !is_whole {
            return Ok(());
        }
        let directory = checkout().join(DIRECTORY);
        let path = directory.join(self.campaign).with_extension("md");
        fs::create_dir_all(&directory)
            .and_then(|()| fs::write(&path, &self.text))
            .with_context(|| format!("write {}", path.display()))
    }
}
