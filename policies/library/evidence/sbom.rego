# Bills of materials, from input.attestations: what the image was made of. Read
# are CycloneDX and SPDX 2, both as JSON.
package skep.evidence.sbom

import data.skep.lib

# Whether signers of the names attest what the image is made of, and none of the
# packages is part of it. A package is a glob, in either case of letters, of a
# name, of name@version, or of a package URL with or without its version and
# qualifiers. False where there is no bill of materials, or one that lists
# nothing or that cannot be read.
lacks(attestations, names, packages) if {
	boms := lib.predicates(attestations, names, ["https://cyclonedx.org/bom", "https://spdx.dev/Document"])
	count(boms) > 0
	unwanted := {lower(package_glob) | some package_glob in packages}
	every bom in boms {
		parts := components(bom) | spdx_packages(bom)
		count(parts) > 0
		every part in parts {
			is_string(part.name)
			not listed(unwanted, part)
		}
	}
}

# The components of CycloneDX, with those that are inside others, and what they
# make up.
components(bom) := inside | whole if {
	inside := {part |
		walk(bom, [path, part])
		path[count(path) - 2] == "components"
	}
	whole := {part | part := bom.metadata.component}
}

# The packages of SPDX.
spdx_packages(bom) := {part | some part in bom.packages}

listed(globs, part) if {
	some identifier in identifiers(part)
	lib.matches_any(globs, lower(identifier))
}

identifiers(part) := (plain | versioned) | urls if {
	plain := {part.name} | {name | name := sprintf("%s/%s", [part.group, part.name])}
	versioned := {sprintf("%s@%s", [name, part[key]]) |
		some name in plain
		some key in ["version", "versionInfo"]
	}
	urls := {form |
		some url in package_urls(part)
		some form in forms(url)
	}
}

package_urls(part) := {url | url := part.purl; is_string(url)} | {ref.referenceLocator |
	some ref in part.externalRefs
	ref.referenceType == "purl"
	is_string(ref.referenceLocator)
}

# A package URL as it is, without qualifiers and subpath, and without its version
# as well.
forms(url) := {url, unqualified, regex.replace(unqualified, `@[^@/]*$`, "")} if {
	unqualified := regex.replace(url, `[?#].*$`, "")
}
