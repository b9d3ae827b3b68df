# Who signed, from input.signatures.
package skep.evidence.signers

# Whether at least n different signers of the names signed the image.
at_least(signatures, n, names) if {
	n > 0
	count({signature.signer |
		some signature in signatures
		signature.signer in names
	}) >= n
}
