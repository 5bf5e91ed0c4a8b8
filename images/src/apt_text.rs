//! What is written for apt and read from it: text only, no programs and no files.

use std::path::Path;

use crate::distribution::ARCHITECTURE;

/// The private part of apt's configuration.
const CONFIG: &str = include_str!("../apt.conf");

/// A package that is to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    /// Name of the downloaded file: `name_version_architecture.deb`.
    pub(crate) file: String,
    /// Size of the file in bytes.
    pub(crate) size: u64,
    /// Hash of the file as the signed index has it.
    pub(crate) hash: String,
}

impl Package {
    /// The package's name.
    pub(crate) fn name(&self) -> &str {
        self.file.split('_').next().unwrap_or_default()
    }

    /// Name and version as apt takes them.
    pub(crate) fn exact(&self) -> String {
        let version = self.file.split('_').nth(1).unwrap_or_default();
        format!("{}={}", self.name(), version.replace("%3a", ":"))
    }
}

/// A version of a package that the mirror has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) suite: String,
}

/// What kind of trouble apt reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Unsigned,
    Missing,
    Unreachable,
}

/// A configuration that has the host's network settings and nothing else of it.
///
/// `host` is what `apt-config dump` prints. Index targets are left out because
/// desktop hosts add ones that serve nothing here; hooks, preferences and
/// installed packages because they concern the host only.
pub(crate) fn config(dir: &Path, host: &str) -> String {
    let network =
        |line: &&str| line.starts_with("Acquire::") && !line.starts_with("Acquire::IndexTargets");
    let own = CONFIG
        .replace("@dir@", &dir.display().to_string())
        .replace("@architecture@", ARCHITECTURE);
    let host = host.lines().filter(network);
    host.chain(own.lines())
        .map(|line| format!("{line}\n"))
        .collect()
}

/// A sources file for `suites` of `mirror`.
pub(crate) fn sources(mirror: &str, keyring: &Path, suites: &[&str]) -> String {
    let keyring = keyring.display();
    suites
        .iter()
        .map(|suite| {
            format!("deb [arch={ARCHITECTURE} signed-by={keyring}] {mirror} {suite} main\n")
        })
        .collect()
}

/// Reads `apt-get --print-uris install`: `'uri' file size hash`.
pub(crate) fn print_uris(text: &str) -> Vec<Package> {
    let package = |line: &str| {
        let mut fields = line.strip_prefix('\'')?.split_ascii_whitespace().skip(1);
        Some(Package {
            file: fields.next()?.to_owned(),
            size: fields.next()?.parse().ok()?,
            hash: fields.next()?.to_owned(),
        })
    };
    text.lines().filter_map(package).collect()
}

/// Reads `apt-cache madison`: `name | version | uri suite/component arch Packages`.
pub(crate) fn madison(text: &str) -> Vec<Available> {
    let available = |line: &str| {
        let mut fields = line.split('|').map(str::trim);
        let (name, version, index) = (fields.next()?, fields.next()?, fields.next()?);
        let mut index = index.split_ascii_whitespace();
        let suite = index.nth(1)?.split('/').next()?;
        (index.next_back()? == "Packages").then(|| Available {
            name: name.to_owned(),
            version: version.to_owned(),
            suite: suite.to_owned(),
        })
    };
    text.lines().filter_map(available).collect()
}

/// Reads a line of apt's status stream: `dlstatus:item:percent:text`.
pub(crate) fn status_percent(line: &str) -> Option<f64> {
    let percent = line.strip_prefix("dlstatus:")?.split(':').nth(1)?;
    percent.parse().ok().map(|p: f64| p.clamp(0.0, 100.0))
}

/// What apt prints for each kind of trouble. The first kind that matches counts.
const COMPLAINTS: [(Trouble, &str); 3] = [
    (
        Trouble::Unsigned,
        "NO_PUBKEY|is not signed|signatures|Missing key",
    ),
    (
        Trouble::Missing,
        "does not have a Release file|404 |Unable to locate package|unmet dependencies|\
         was not found|has no installation candidate|is invalid for APT::Default-Release",
    ),
    (
        Trouble::Unreachable,
        "Failed to fetch|Could not|Temporary failure|Cannot initiate",
    ),
];

/// Sorts what apt complains of; `None` is something it does not say often.
pub(crate) fn trouble(stderr: &str) -> Option<Trouble> {
    let matches = |texts: &str| texts.split('|').any(|text| stderr.contains(text));
    let mut complaints = COMPLAINTS.into_iter();
    complaints.find_map(|(trouble, texts)| matches(texts).then_some(trouble))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_takes_the_network_and_leaves_the_hooks() {
        let host = "APT::Update::Post-Invoke:: \"rm -f /x\";\n\
                    Acquire::http::Proxy \"http://proxy.example:3128\";\n\
                    Acquire::IndexTargets::deb::DEP-11::MetaKey \"x\";\n\
                    Dir::Etc::parts \"apt.conf.d\";\n";
        let text = config(Path::new("/cache/apt"), host);
        assert!(text.starts_with("Acquire::http::Proxy \"http://proxy.example:3128\";\n"));
        assert!(!text.contains("Post-Invoke") && !text.contains("DEP-11"));
        assert!(text.contains("Dir::Etc::parts \"/dev/null\";"));
        assert!(text.contains("Dir::State::status \"/cache/apt/status\";"));
    }

    #[test]
    fn sources_name_the_keys_and_each_suite() {
        let text = sources("http://m.example/debian", Path::new("/k.gpg"), &["a", "b"]);
        assert_eq!(
            text,
            "deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian a main\n\
             deb [arch=amd64 signed-by=/k.gpg] http://m.example/debian b main\n"
        );
    }

    #[test]
    fn packages_are_read_with_epoch_and_hash() {
        let text = "Reading package lists...\n\
                    'http://m.example/p/q_11.1_amd64.deb' q-x_1%3a11.1+ds-1_amd64.deb 123 SHA256:ab\n\
                    'http://m.example/broken' only-a-name\n";
        let packages = print_uris(text);
        assert_eq!(packages.len(), 1);
        assert_eq!(packages[0].name(), "q-x");
        assert_eq!(packages[0].exact(), "q-x=1:11.1+ds-1");
        let (size, hash) = (packages[0].size, packages[0].hash.as_str());
        assert_eq!((size, hash), (123, "SHA256:ab"));
    }

    #[test]
    fn versions_are_read_with_their_suite() {
        let text = " linux-x | 7.2.12-1~bpo13+1 | http://m.example/debian s-backports/main amd64 Packages\n\
                    linux | 1 | http://m.example/debian s/main Sources\nnoise\n";
        assert_eq!(
            madison(text),
            [Available {
                name: "linux-x".into(),
                version: "7.2.12-1~bpo13+1".into(),
                suite: "s-backports".into()
            }]
        );
    }

    #[test]
    fn progress_is_read_from_the_status_stream() {
        let percent = status_percent("dlstatus:2:80.5028:Retrieving");
        assert_eq!(percent, Some(80.5028));
        assert_eq!(status_percent("dlstatus:2:900:x"), Some(100.0));
        assert_eq!(status_percent("Get:1 http://m.example"), None);
    }

    #[test]
    fn complaints_are_sorted() {
        let cases = [
            (
                Trouble::Missing,
                "E: The repository 'x trixie Release' does not have a Release file.\n\
                 E: Unable to locate package nonexist\n\
                 E: Failed to fetch http://x  404  Not Found",
            ),
            (
                Trouble::Unreachable,
                "E: Failed to fetch http://x  Could not resolve 'x'\n\
                 E: Failed to fetch http://x  Could not connect to x:9",
            ),
            (
                Trouble::Unsigned,
                "W: GPG error: x: The following signatures couldn't be verified: NO_PUBKEY 1\n\
                 E: The repository 'x trixie InRelease' is not signed.",
            ),
        ];
        for (expected, texts) in cases {
            for text in texts.lines().chain([texts]) {
                assert_eq!(trouble(text), Some(expected), "{text}");
            }
        }
        assert_eq!(trouble("E: dpkg was interrupted"), None);
    }
}
