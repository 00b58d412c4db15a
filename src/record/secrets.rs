//! What secrets look like: the one list that is kept up to date. A kind that is missing gets a line here and an example in
//! `redact.rs`'s tests.

/// The shortest text that any form matches, in bytes: `pwd=x`.
pub(super) const SHORTEST: usize = 5;

/// Words that make a name secret, in names of arguments and in texts alike.
pub(super) const SECRET_WORDS: &str = "pass[-_ ]?(?:word|wd|phrase|code)|pwd|secret|credentials?|session[-_ ]?(?:id|key)|token\
    |(?:access|account|api|encryption|master|private|shared[-_ ]?access|signing|ssh|subscription)[-_ ]?key";

/// Further names of arguments whose values are secret. In texts these words say too little, or have their own pattern.
pub(super) const SECRET_NAMES: &str =
    "authorization|cookie|session|^(?:auth|bearer|connection[-_ ]?string|dsn|jwt|otp|pass|pin)$";

/// Texts that are secrets by their form, each with the kind that is shown instead. Where a pattern has a group `secret`,
/// only that is replaced. Each pattern starts with fixed letters, fewer than 64 beginnings in all, so that one vectorised
/// pass finds almost every text clean.
pub(super) const SHORT_FORMS: &[(&str, &str)] = &[
    (
        "private-key",
        r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,6}-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,6}-----|\z)",
    ),
    ("authorization", r"\b(?:Bearer|bearer)[ \t]+(?<secret>[A-Za-z0-9+/=._~-]{6,})"),
    ("authorization", r"\b(?:Basic|basic)[ \t]+(?<secret>[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{6,}={1,2})"),
    ("jwt", r"\beyJ[A-Za-z0-9_-]{6,}\.eyJ[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"),
    ("aws", r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}"),
    ("slack", r"\bxox[abeoprs]-[A-Za-z0-9-]{8,}|\bxapp-[A-Za-z0-9-]{8,}|hooks\.slack\.com/services/[A-Za-z0-9/]+"),
    ("webhook", r"discord(?:app)?\.com/api/webhooks/[A-Za-z0-9/_-]+|webhook\.office\.com/webhookb2/[A-Za-z0-9/@-]+"),
    ("stripe", r"\b[rs]k_(?:live|test|prod)_[A-Za-z0-9]{8,}|\bwhsec_[A-Za-z0-9+/=]{16,}"),
    ("api-key", r"\bsk-(?:[A-Za-z0-9_-]{16,}|[A-Z0-9]{6,})"),
];

/// Forms that hold at least [`LONG_TOKEN`] characters of a token in a row; looked for only where a text has so many.
pub(super) const LONG_FORMS: &[(&str, &str)] = &[
    ("private-key", r"\bAGE-SECRET-KEY-1[0-9A-Z]{20,}"),
    ("github", r"\b(?:gh[oprsu]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})"),
    (
        "gitlab",
        r"\bgl(?:agent|cbt|dt|ffct|ft|imt|oas|pat|ptt|rt|rtr|soat)-[A-Za-z0-9_.-]{16,}|\bGR1348941[A-Za-z0-9_-]{16,}",
    ),
    ("google", r"\bAIza[A-Za-z0-9_-]{24,}|\bya29\.[A-Za-z0-9_-]{16,}|\bGOCSPX-[A-Za-z0-9_-]{16,}"),
    ("alibaba", r"\bLTAI[A-Za-z0-9]{16,}"),
    ("atlassian", r"\bAT(?:ATT|BB|CTT|LASSIAN)[A-Za-z0-9_=-]{20,}"),
    ("azure", r"\b[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"),
    ("discord", r"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"),
    ("dynatrace", r"\bdt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    ("facebook", r"\bEAA[A-Za-z0-9]{20,}"),
    ("flyio", r"\bf(?:o1_|m1[ar]_|m2_)[A-Za-z0-9+/=_,-]{20,}"),
    ("grafana", r"\bgl(?:c|sa)_[A-Za-z0-9+/=_]{20,}"),
    ("linear", r"\blin_(?:api|oauth)_[A-Za-z0-9]{16,}"),
    ("mailgun", r"\b(?:key|pubkey)-[0-9a-f]{32}\b"),
    ("mailchimp", r"\b[0-9a-f]{32}-us[0-9]{1,2}\b"),
    ("newrelic", r"\bNR(?:AK|II|IQ|JS|RA|SP)-[A-Za-z0-9_-]{16,}"),
    ("onepassword", r"\bops_eyJ[A-Za-z0-9+/=_-]{20,}|\bA3-[A-Z0-9]{6}-[A-Z0-9-]{20,}"),
    ("openshift", r"\bsha256~[A-Za-z0-9_-]{30,}"),
    ("planetscale", r"\bpscale_(?:oauth|pw|tkn)_[A-Za-z0-9_.=-]{16,}"),
    ("sentry", r"\bsntry[rsu]_[A-Za-z0-9+/=_]{20,}"),
    ("shopify", r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32,}"),
    ("square", r"\bsq0(?:atp|csp|idp)-[A-Za-z0-9_-]{16,}"),
    ("telegram", r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}"),
    ("terraform", r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}"),
    ("twilio", r"\bSK[0-9a-f]{32}\b"),
    ("yandex", r"\bAQVN[A-Za-z0-9_-]{30,}|\bt1\.[A-Za-z0-9_-]{20,}"),
    ("airtable", r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    ("artifactory", r"\bAKC[A-Za-z0-9]{20,}|\bcmVmdGtu[A-Za-z0-9]{20,}"),
    ("aws", r"\bABSK[A-Za-z0-9+/=]{30,}"),
    (
        "api-key",
        r"\b(?:gsk_|hf_|api_org_|npm_|pplx-|xai-|tgp_v1_|nvapi-)[A-Za-z0-9_-]{18,}|\b(?:fw|jina|r8)_[A-Za-z0-9]{20,}",
    ),
    ("api-key", r"\b(?:dapi|dsapi)[0-9a-f]{32,}|\bdo[opr]_v1_[0-9a-f]{32,}"),
    (
        "api-key",
        r"\b(?:dckr_(?:pat|oat)_|dp\.(?:pt|st|ct|sa|scim|audit)\.|hv[bsr]\.|pypi-|PMAK-|tskey-)[A-Za-z0-9_.-]{16,}",
    ),
    ("api-key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|\bxkeysib-[0-9a-f]{32,}"),
    (
        "api-key",
        r"\b(?:figd_|nfp_|pul-|rdme_|rubygems_|CLOJARS_|pnu_|sgp_|sbp_|sq[apu]_|tfp_)[A-Za-z0-9_-]{20,}|\bv1\.0-[0-9a-f]{24}-[0-9a-f]{40,}",
    ),
    (
        "api-key",
        r"\b(?:duffel_(?:live|test)_|shippo_(?:live|test)_|EZ[AT]K|FLWSECK_TEST-|FLWSECK-|p8e-|ico-|fio-u-)[A-Za-z0-9_=-]{26,}",
    ),
    (
        "api-key",
        r"\b(?:pat-(?:eu|na)[12]-|sm_(?:aat|pat|sat)_|oy2|phc_|phx_|ntn_|secret_|lsv2_(?:pt|sk)_)[A-Za-z0-9_-]{26,}",
    ),
];

/// How many characters of a token in a row each of [`LONG_FORMS`] holds.
pub(super) const LONG_TOKEN: usize = 20;

/// Further forms; each holds `:`, `=` or `--`. `WORDS` stands for [`SECRET_WORDS`].
pub(super) const SIGNED_FORMS: &[(&str, &str)] = &[
    ("authorization", r#"(?i-u:authorization)[\\"']*[ \t]*[:=][ \t]*[\\"']*(?<secret>[^\r\n"']+)"#),
    ("cookie", r#"(?i-u:cookie)[\\"']*[ \t]*[:=][ \t]*[\\"']*(?<secret>[^\r\n"']+)"#),
    ("password", r#":/{1,2}[^\s/:@"']*:(?<secret>[^\s/"']+)@"#),
    ("password", r#":/{1,2}(?<secret>[^\s/:@"']{20,})@"#),
    (
        "secret",
        r#"(?i-u:WORDS)(?:[-_A-Z][A-Za-z0-9_-]{0,24})?[\\"']*[ \t]*[:=]>?[ \t]*(?<secret>\\?"[^"]*"?|'[^']*'?|[^\s"'&;]+)"#,
    ),
    ("secret", r#"--(?i-u:[a-z-]*(?:WORDS)[a-z-]*)[ \t]+["']?(?<secret>[^\s"']+)"#),
];
