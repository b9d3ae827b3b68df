package skep.policy_test

import data.skep.evidence.vuln

# The form of cosign's COSIGN_VULN_ATTESTATION_SPEC.md.
scan(result) := attests("scanner", "https://cosign.sigstore.dev/attestation/vuln/v1", {
	"invocation": {"uri": "", "event_id": "", "builder.id": ""},
	"scanner": {"uri": "pkg:github/example/scanner@1", "version": "1", "db": {"uri": "", "version": ""}, "result": result},
	"metadata": {"scanStartedOn": "2026-01-01T00:00:00Z", "scanFinishedOn": "2026-01-01T00:00:01Z"},
})

grype(severities) := scan({"matches": [{"vulnerability": {"id": "CVE-1", "severity": severity}} | some severity in severities]})

trivy(severities) := scan({"SchemaVersion": 2, "Results": [
	{"Target": "os"},
	{"Target": "go", "Vulnerabilities": [{"VulnerabilityID": "CVE-1", "Severity": severity} | some severity in severities]},
]})

in_toto(scores) := object.union(
	scan([{"id": "CVE-1", "severity": [{"method": "nvd", "score": score} | some score in scores]}]),
	{"predicateType": "https://in-toto.io/attestation/vulns/v0.2"},
)

test_nothing_found if {
	every none in [grype([]), trivy([]), scan({"SchemaVersion": 2}), scan([])] {
		vuln.none_above([none], ["scanner"], "none")
	}
}

test_names_of_severities if {
	every found in [grype(["Negligible", "Medium"]), trivy(["LOW", "MEDIUM"]), in_toto(["moderate"])] {
		vuln.none_above([found], ["scanner"], "medium")
		vuln.none_above([found], ["scanner"], "critical")
		not vuln.none_above([found], ["scanner"], "low")
	}
	every found in [grype(["Low", "Critical"]), trivy(["CRITICAL", "LOW"])] {
		not vuln.none_above([found], ["scanner"], "high")
	}
	vuln.none_above([in_toto(["important"])], ["scanner"], "high")
}

test_scores if {
	every score, severity in {"0": "none", "0.1": "low", "3.9": "low", "4.0": "medium", "6.9": "medium", "7": "high", "8.9": "high", "9.0": "critical", "10.0": "critical"} {
		vuln.none_above([in_toto([score])], ["scanner"], severity)
	}
}

test_the_least_severity_of_a_score if {
	every score, below in {"0.1": "none", "4.0": "low", "7.0": "medium", "9.0": "high", "10": "high"} {
		not vuln.none_above([in_toto([score])], ["scanner"], below)
		not vuln.none_above([in_toto([to_number(score)])], ["scanner"], below)
		vuln.none_above([in_toto([to_number(score)])], ["scanner"], "critical")
	}
	vuln.none_above([in_toto([0])], ["scanner"], "none")
}

test_the_worst_of_several_scores if {
	not vuln.none_above([in_toto(["low", "9.8"])], ["scanner"], "high")
	vuln.none_above([in_toto(["CVSS:3.1/AV:N/AC:L", "5.2"])], ["scanner"], "medium")
}

test_what_cannot_be_read_is_above_all if {
	every found in [grype(["Unknown"]), grype([""]), grype([null]), trivy(["UNKNOWN"]), in_toto([]), in_toto(["11"]), in_toto([-1]), in_toto(["CVSS:3.1/AV:N"]), scan([{}]), scan([7]), scan({"matches": [{}]}), scan({"matches": [7]}), scan({"SchemaVersion": 2, "Results": [{"Vulnerabilities": [{}]}]})] {
		not vuln.none_above([found], ["scanner"], "critical")
	}
}

test_a_scan_that_cannot_be_read if {
	every result in [null, "x", {}, {"runs": []}, {"Results": []}] {
		not vuln.none_above([scan(result)], ["scanner"], "critical")
	}
	not vuln.none_above([attests("scanner", "https://cosign.sigstore.dev/attestation/vuln/v1", {})], ["scanner"], "critical")
}

test_every_scan_counts if {
	not vuln.none_above([grype([]), trivy(["HIGH"])], ["scanner"], "medium")
	vuln.none_above([grype([]), object.union(trivy(["HIGH"]), {"signer": "other"})], ["scanner"], "medium")
}

test_nobody_scanned if {
	not vuln.none_above([], ["scanner"], "critical")
	not vuln.none_above([grype([])], ["other"], "critical")
	not vuln.none_above([object.union(grype([]), {"predicateType": "https://example.com/scan"})], ["scanner"], "critical")
}

test_a_severity_that_is_none if {
	not vuln.none_above([grype([])], ["scanner"], "severe")
}
