//! Reports as JUnit XML, which every CI reads.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::cases::{Case, Ended, Suite};

/// A file for a report, made before there is something to report, so that a path that cannot
/// be written is told at once.
#[derive(Debug)]
pub struct JunitFile {
    file: File,
}

impl JunitFile {
    /// Makes the file and the directories above it.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        if let Some(above) = path.parent() {
            fs::create_dir_all(above)?;
        }
        let file = File::create(path)?;
        Ok(Self { file })
    }

    /// Writes the report `name` of `suites`.
    ///
    /// # Errors
    /// Returns what the system says.
    pub fn write(mut self, name: &str, suites: &[Suite]) -> io::Result<()> {
        write_junit(name, suites, &mut self.file)
    }
}

/// Writes the report `name` of `suites` to `to`.
///
/// # Errors
/// Returns what the system says.
pub fn write_junit(name: &str, suites: &[Suite], to: &mut dyn Write) -> io::Result<()> {
    let mut report = Report::new(text(name));
    report.set_time(suites.iter().map(|suite| suite.took).sum());
    report.add_test_suites(suites.iter().map(suite));
    let report = report.to_string().map_err(io::Error::other)?;
    to.write_all(report.as_bytes())
}

/// Text as a report may have it: the two characters in it that XML has not, and that the writer of
/// reports lets pass, are replaced. All text of others goes through this.
fn text(from: &str) -> String {
    from.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

fn suite(from: &Suite) -> TestSuite {
    let mut suite = TestSuite::new(text(&from.name));
    suite.set_time(from.took);
    let properties = from.properties.iter();
    suite.add_properties(properties.map(|(name, value)| (text(name), text(value))));
    suite.add_test_cases(from.cases.iter().map(case));
    suite
}

fn case(from: &Case) -> TestCase {
    let status = match &from.ended {
        Ended::Passed => TestCaseStatus::success(),
        Ended::Skipped(why) => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(text(why));
            status
        }
        Ended::Failed { message, details } => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(text(message)).set_type("failure");
            status.set_description(text(&format!("{message}\n{details}")));
            status
        }
    };
    let mut case = TestCase::new(text(&from.name), status);
    case.set_classname(text(&from.class)).set_time(from.took);
    if !from.output.is_empty() {
        case.set_system_out(text(&from.output));
    }
    case
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn written(suites: &[Suite]) -> String {
        let mut bytes = Vec::new();
        write_junit("pair", suites, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_report_has_counts_times_and_the_reason_of_a_failure() {
        let second = Duration::from_secs(1);
        let run = Case::passed("pair.b", "run", second);
        let suite = Suite {
            name: "pair".into(),
            properties: vec![("seed".into(), "7".into())],
            took: Duration::from_millis(2500),
            cases: vec![
                Case::passed("pair.a", "boot", second),
                run.failing("status 1", "<oops> & \u{1b}[1mmore\u{1b}[0m\u{0}"),
                Case::passed("pair", "collect", second).skipped("not asked for"),
            ],
        };
        let text = written(&[suite]);
        for part in [
            r#"<testsuites name="pair" tests="3" skipped="1" failures="1" errors="0" time="2.500">"#,
            r#"<testsuite name="pair" tests="3" skipped="1" errors="0" failures="1" time="2.500">"#,
            r#"<property name="seed" value="7"/>"#,
            r#"<testcase name="boot" classname="pair.a" time="1.000"/>"#,
            r#"<failure message="status 1" type="failure">"#,
            "&lt;oops&gt; &amp; more",
            "<skipped message=\"not asked for\"/>",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    /// U+FFFE and U+FFFF are characters of a program's output, and none of XML.
    #[test]
    fn a_report_has_only_what_xml_has() {
        let odd = |name: &str| format!("{name}\u{fffe}\u{ffff}\u{1}end");
        let mut run = Case::passed(odd("class"), odd("case"), Duration::ZERO);
        run.output = odd("output");
        let cases = vec![
            run.clone().failing(odd("why"), odd("details")),
            run.skipped(odd("skipped")),
        ];
        let suite = Suite {
            name: odd("suite"),
            properties: vec![(odd("key"), odd("value"))],
            took: Duration::ZERO,
            cases,
        };
        let mut bytes = Vec::new();
        write_junit(&odd("report"), &[suite], &mut bytes).unwrap();
        let report = String::from_utf8(bytes).unwrap();
        let is_xml =
            |c: char| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{fffd}' | '\u{10000}'..);
        assert!(report.chars().all(is_xml), "{report:?}");
        for part in [
            "report", "suite", "key", "value", "class", "case", "output", "why", "details",
            "skipped",
        ] {
            assert!(
                report.contains(&format!("{part}\u{fffd}\u{fffd}end")),
                "{part}"
            );
        }
    }

    #[test]
    fn a_path_that_cannot_be_written_is_told_before_anything_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/b/report.xml");
        let report = JunitFile::create(&file).unwrap();
        report.write("x", &[]).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("<testsuites"));
        assert!(JunitFile::create(&file.join("below")).is_err());
    }
}
