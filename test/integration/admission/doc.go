// Package admission tests the webhooks on a real API server: two
// controllers with the rights that the chart gives them, behind the chart's
// webhooks and policies.
//
// It has tests alone. Users in it are impersonated, agents show real bound
// tokens.
package admission
