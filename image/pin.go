package image

// Named is what a reference says by itself: Resolve's answer, without a digest
// where it names a tag alone.
func Named(reference string) (Resolved, error) { return (&Client{}).parse(reference) }

// Pin is what Resolve would answer if the reference stood for the digest, and
// asks nobody. It lets a tag be resolved once and gone by afterwards. A
// reference that names another digest is malformed.
func (c *Client) Pin(reference, digest string) (Resolved, error) {
	r, err := c.parse(reference)
	if err != nil {
		return Resolved{}, err
	}
	hash, err := parseDigest(digest)
	if err != nil {
		return Resolved{}, err
	}
	if r.Digest != "" && r.Digest != hash.String() {
		return Resolved{}, malformed("pin reference %q to %s: it names another digest", reference, digest)
	}
	r.Digest = hash.String()
	return r, nil
}
