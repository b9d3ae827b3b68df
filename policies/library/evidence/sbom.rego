# Bills of materials, from input.attestations: what the image was made of. Read
# are CycloneDX and SPDX 2, both as JSON.
package skep.evidence.sbom

import data.skep.lib

# Whether signers of the names attest what the image is made of, and none of the
# packages is part of it. A package is a glob, in either case of letters, of a
# name, of name@version, or of a package URL with or without its version and
# qualifiers. False where there is no bill of materials, or one that lists
# nothing or that cannot be read, and where packages is no list of strings.
lacks(attestations, names, packages) if {
	is_array(packages)
	every package_glob in packages {
		is_string(package_glob)
	}
	boms := lib.predicates(attestations, names, ["https://cyclonedx.org/bom", "https://spdx.dev/Document"])
	count(boms) > 0
	every bom in boms {
		parts := components(bom) | spdx_packages(bom)
		count(parts) > 0
		every part in parts {
			is_string(part.name)
		}
		not listed(packages, parts)
	}
}

# The components of CycloneDX, with those that are inside others, and what they
# make up.
components(bom) := (outer | inner) | whole if {
	outer := {part | some part in bom.components}
	inner := {part |
		some outermost in outer
		outermost.components
		walk(outermost, [path, part])
		path[count(path) - 2] == "components"
	}
	whole := {part | part := bom.metadata.component}
}

# The packages of SPDX.
spdx_packages(bom) := {part | some part in bom.packages}

listed(packages, parts) if {
	known := identifiers(parts)
	some package_glob in packages
	unwanted := lower(package_glob)
	some identifier in known
	glob.match(unwanted, ["/"], identifier)
}

# What parts are called, in small letters.
identifiers(parts) := {lower(name) | some name in ((plain | versioned) | urls)} if {
	named := {[name, part] |
		some part in parts
		some name in ({part.name} | {name | name := sprintf("%s/%s", [part.group, part.name])})
	}
	plain := {name | some [name, _] in named}
	versioned := {sprintf("%s@%s", [name, part[key]]) |
		some [name, part] in named
		some key in ["version", "versionInfo"]
	}
	urls := {form |
		some url in package_urls(parts)
		some form in forms(url)
	}
}

package_urls(parts) := own | external if {
	own := {part.purl | some part in parts; is_string(part.purl)}
	external := {ref.referenceLocator |
		some part in parts
		some ref in part.externalRefs
		ref.referenceType == "purl"
		is_string(ref.referenceLocator)
	}
}

# A package URL as it is, without qualifiers and subpath, and without its version
# as well.
forms(url) := {url, unqualified, regex.replace(unqualified, `@[^@/]*$`, "")} if {
	unqualified := regex.replace(url, `[?#].*$`, "")
}
