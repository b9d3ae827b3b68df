# Scans for known vulnerabilities, from input.attestations. Read are cosign's
# and in-toto's predicates, with what Grype and Trivy report as JSON, or with
# in-toto's own list of results.
package skep.evidence.vuln

import data.skep.lib

# Whether signers of the names attest a scan, and no scan of theirs found
# anything above the severity: none, low, medium, high or critical. What has no
# severity that can be read is above all of them. False where there is no scan,
# or one that cannot be read.
none_above(attestations, names, severity) if {
	highest := ranks[severity]
	scans := lib.predicates(attestations, names, [
		"https://cosign.sigstore.dev/attestation/vuln",
		"https://in-toto.io/attestation/vulns",
	])
	count(scans) > 0
	every scan in scans {
		every found in findings(scan.scanner.result) {
			rank(found) <= highest
		}
	}
}

# Severities as scanners name them, from the least.
ranks := {
	"none": 0,
	"negligible": 1, "low": 1,
	"medium": 2, "moderate": 2,
	"high": 3, "important": 3,
	"critical": 4,
}

unreadable := 5

# What was found, each as the list of its severities. Undefined where the form of
# the result is none of those.
findings(result) := [scores | some found in result; scores := [score | score := found.severity[_].score]] if {
	is_array(result)
} else := [severities | some match in result.matches; severities := [severity | severity := match.vulnerability.severity]] if {
	is_array(result.matches)
} else := [severities | found := result.Results[_].Vulnerabilities[_]; severities := [severity | severity := found.Severity]] if {
	is_number(result.SchemaVersion)
}

# The rank of the worst severity that can be read.
rank(severities) := max(readable) if {
	readable := {r |
		some severity in severities
		r := rank_of(severity)
	}
	count(readable) > 0
} else := unreadable

rank_of(severity) := ranks[lower(severity)] if {
	is_string(severity)
} else := rating(to_number(severity)) if {
	is_string(severity)
	regex.match(`^[0-9]{1,2}([.][0-9]+)?$`, severity)
} else := rating(severity) if {
	is_number(severity)
}

# The rating of a CVSS score, from 0 to 10, as section 5 of
# https://www.first.org/cvss/v3-1/specification-document has it.
rating(score) := 0 if {
	score == 0
} else := 1 if {
	score > 0
	score < 4
} else := 2 if {
	score >= 4
	score < 7
} else := 3 if {
	score >= 7
	score < 9
} else := 4 if {
	score >= 9
	score <= 10
}
