package registry

import "github.com/skep-dev/skep/image"

// Pin is what Resolve would answer if the reference stood for the digest, and
// asks nobody. It lets a tag be resolved once and gone by afterwards. A
// reference that names another digest is malformed.
func (c *Client) Pin(reference, digest string) (image.Resolved, error) {
	r, err := c.Parse(reference)
	if err != nil {
		return image.Resolved{}, err
	}
	hash, err := image.ParseDigest(digest)
	if err != nil {
		return image.Resolved{}, err
	}
	if r.Digest != "" && r.Digest != hash.String() {
		return image.Resolved{}, image.Malformed("pin reference %q to %s: it names another digest", reference, digest)
	}
	r.Digest = hash.String()
	return r, nil
}

// Parse is Parse of a reference to a registry that may be named.
func (c *Client) Parse(reference string) (image.Resolved, error) {
	r, err := image.Parse(reference, c.options.InsecureRegistries)
	if err == nil && r.Registry != "" {
		err = c.permit(r)
	}
	if err != nil {
		return image.Resolved{}, err
	}
	return r, nil
}
